//! Properties that hold for all values.

use proptest::prelude::*;

use crate::{Name, Token};

proptest! {
    #[test]
    fn a_token_is_parsed_as_it_is_printed(n in any::<u64>()) {
        let token = Token::from_u64(n);
        prop_assert_eq!(token.to_string().parse::<Token>(), Ok(token));
    }

    #[test]
    fn the_next_token_is_greater_in_any_later_epoch(n in 0..1u64 << 60, epoch in 0..1u32 << 20, later in 0..8u32) {
        let token = Token::from_u64(n).next(epoch);
        prop_assert!(token.next(epoch) > token);
        prop_assert!(token.epoch() >= epoch);
        // A standby lost every grant and was promoted in a later epoch.
        prop_assert!(Token::ZERO.next(token.epoch() + 1 + later) > token);
    }

    #[test]
    fn a_name_is_stored_unchanged_or_rejected(text in ".{0,140}") {
        match text.parse::<Name>() {
            Ok(name) => prop_assert_eq!(name.as_str(), text),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn valid_names_are_accepted(text in "[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}") {
        prop_assert!(text.parse::<Name>().is_ok());
    }
}
