//! Handlers that fail, hang and panic, stores that are away, and shares that are lost.
