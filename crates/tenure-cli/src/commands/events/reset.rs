//! `tenure events reset`: put a group elsewhere, and show where it was and is.

use serde_json::json;
use tenure::port::{GroupKey, Moved};

use super::group;
use crate::args::events::ResetArgs;
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, counted, paint};
use crate::store;

pub(super) async fn run(global: &Global, args: ResetArgs) -> Result<u8, Failure> {
    let key = args.which.key(global)?;
    tenure::event::check_begin(&args.to).map_err(|error| Failure::usage(error.to_string()))?;
    let store = store::open(global).await?;
    group(store.as_ref(), &key).await?;
    let moved = store.reset_group(&key, args.to, args.slot, args.dry_run).await?;
    match global.output {
        Format::Json => {
            output::print_json(&json!({"group": key, "dry_run": args.dry_run, "slots": moved}));
        }
        Format::Table => output::print_text(&told(&key, &moved, args.dry_run)),
    }
    Ok(0)
}

/// Only slots that move, and how many do not.
fn told(key: &GroupKey, moved: &[Moved], dry_run: bool) -> String {
    let (moving, staying): (Vec<&Moved>, Vec<&Moved>) = moved.iter().partition(|slot| slot.from != slot.to);
    let mut text = String::new();
    if !moving.is_empty() {
        let mut table = Table::new(&["slot", "before", "after", ""]).right(&["slot", "before", "after"]);
        for slot in &moving {
            let (word, ink) = match slot.to < slot.from {
                true => ("reads again", Ink::Yellow),
                false => ("skips", Ink::Red),
            };
            table.row(vec![
                (slot.slot.to_string(), Ink::Bold),
                (slot.from.to_string(), Ink::Plain),
                (slot.to.to_string(), Ink::Plain),
                (word.to_owned(), ink),
            ]);
        }
        text = table.render();
    }
    let stay = match (moving.len(), staying.len()) {
        (_, 0) => String::new(),
        (0, _) => "every slot of it is there already".to_owned(),
        (_, 1) => "1 slot stays where it is".to_owned(),
        (_, count) => format!("{count} slots stay where they are"),
    };
    let done = match (moving.len(), dry_run) {
        (0, _) => String::new(),
        (count, true) => format!("{} of {key} would move", counted(count, "slot")),
        (count, false) => format!("{} of {key} moved", counted(count, "slot")),
    };
    let told: Vec<_> = [done, stay].into_iter().filter(|part| !part.is_empty()).collect();
    let nothing = if dry_run { "; nothing was changed (--dry-run)" } else { "" };
    text + &paint(&format!("{}{nothing}", told.join(", ")), Ink::Dim) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_shows_where_each_slot_was_and_is() {
        let key: GroupKey = serde_json::from_str(
            r#"{"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"}"#,
        )
        .expect("a group");
        let slot = |slot, from, to| Moved { slot, from, to };
        let moved = [slot(0, 40, 0), slot(1, 7, 7), slot(2, 3, 90)];
        let wanted = "\
SLOT  BEFORE  AFTER
   0      40      0  reads again
   2       3     90  skips
2 slots of orders/mailer would move, 1 slot stays where it is; nothing was changed (--dry-run)
";
        assert_eq!(told(&key, &moved, true), wanted);
        assert_eq!(told(&key, &moved[1..2], false), "every slot of it is there already\n");
        assert!(told(&key, &moved[2..], false).ends_with("1 slot of orders/mailer moved\n"));
    }
}
