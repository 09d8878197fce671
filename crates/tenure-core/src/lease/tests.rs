//! The machine's rules, one claim per test.
