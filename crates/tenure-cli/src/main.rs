//! The `tenure` binary.

#[allow(dead_code)] // until `tenure run` is here
mod child;

fn main() {
    child::watchdog_main_if_asked();
    eprintln!("usage: tenure run NAME -- COMMAND...");
    std::process::exit(2);
}
