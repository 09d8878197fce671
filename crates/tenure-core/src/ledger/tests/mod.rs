//! The rules of the ledger, one claim per test.
