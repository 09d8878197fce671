//! Classification of SQL errors without SQL features: there are none.

use std::error::Error;

pub(super) fn is_transient_database_error(_: &(dyn Error + 'static)) -> bool {
    false
}
