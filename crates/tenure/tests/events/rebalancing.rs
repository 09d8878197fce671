//! Members come, go and die: slots move, few of them, and order is kept.
