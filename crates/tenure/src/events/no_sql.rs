//! Without a database of the user's own there are no errors of one.

use std::error::Error;

pub(super) fn passes(_: &(dyn Error + 'static)) -> bool {
    false
}
