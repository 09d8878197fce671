//! Invalid expressions: position and message of the error.

use super::*;

fn refusal(text: &str) -> CronError {
    match text.parse::<Cron>() {
        Ok(_) => panic!("{text:?} is accepted"),
        Err(error) => error,
    }
}

#[test]
fn each_error_has_its_position_and_remedy() {
    let cases = [
        ("", 1, "the expression is empty; give 5 fields"),
        ("   ", 1, "the expression is empty"),
        ("* * *", 6, "the month is missing; give 5 fields"),
        ("5", 2, "the hour is missing"),
        ("0 0 1 1 * 2026 2027", 16, "years is not supported; use `start_at_ms`"),
        ("* * * * * * * *", 13, "too many fields"),
        ("60 * * * *", 1, "the minute 60 is out of range; minutes are 0 to 59"),
        ("* 24 * * *", 3, "hours are 0 to 23"),
        ("* * 0 * *", 5, "the day of month 0 is out of range"),
        ("* * * 13 *", 7, "months are 1 to 12, or JAN to DEC"),
        ("* * * * 8", 9, "0 to 7, both Sunday"),
        ("99 * * * * *", 1, "the second 99 is out of range"),
        ("* * * FOO *", 7, "FOO is not a month"),
        ("* * * * MONDAY", 9, "use MON"),
        ("* * * JANUARY *", 7, "use JAN"),
        ("MON * * * *", 1, "MON is not a minute"),
        ("*/0 * * * *", 3, "a step of 0 never advances"),
        (
            "*/90 * * * *",
            3,
            "selects only the first value of *; for a longer interval use for example every 90m",
        ),
        ("1-5/10 * * * *", 5, "selects only the first value of 1-5"),
        ("*/ * * * *", 3, "the step is missing here"),
        ("*/5/5 * * * *", 4, "a step must follow *, a value or a range, once"),
        ("0 22-2 * * *", 3, "22-2 goes backwards; use 22-23,0-2"),
        ("0 0 * NOV-FEB *", 7, "use NOV-12,1-FEB"),
        ("0 0 * * FRI-MON", 9, "use FRI-6,0-MON"),
        ("5- * * * *", 3, "the minute is missing here"),
        ("5-* * * * *", 3, "remove the range"),
        ("-5 * * * *", 1, "a minute cannot be negative"),
        ("1,,2 * * * *", 3, "a value is missing here"),
        ("1, * * * *", 3, "remove the comma"),
        (",1 * * * *", 1, "a value is missing here"),
        ("1;2 * * * *", 2, "unexpected ';'"),
        ("0 0 1ü * *", 6, "unexpected 'ü'"),
        ("99999999999 * * * *", 1, "is too large"),
        ("H * * * *", 1, "spread schedules with `jitter_ms`"),
        ("? * * * *", 1, "use * for any minute"),
        ("0 0 1,? * *", 7, "? must stand alone"),
        ("L * * * *", 1, "days of a month support L and W"),
        ("5L * * * *", 2, "not allowed here"),
        ("0 0 * LW *", 7, "not allowed here"),
        ("0 0 W * *", 5, "W must follow a day, as in 15W"),
        ("0 0 1-5W * *", 8, "list them, as in 1W,15W"),
        ("0 0 L-31 * *", 7, "use 1 to 30"),
        ("0 0 L-0 * *", 7, "use 1 to 30"),
        ("0 0 15L * *", 7, "not allowed here"),
        ("0 0 * * L", 9, "as in FRIL for the last Friday"),
        ("0 0 * * 5W", 10, "days of a week support L and #"),
        ("0 0 * * FRI#6", 13, "no month has a 6th; use #1 to #5, or L"),
        ("0 0 * * FRI#0", 13, "use #1 to #5"),
        ("0 0 * * FRI#", 13, "the number of the weekday in the month, 1 to 5, is missing"),
        ("0 0 * * MON-FRI#2", 16, "list them, as in MON#1,FRI#1"),
        ("0 0 * * MON-FRIL", 16, "list them, as in MONL,FRIL"),
        ("@dayly", 1, "unknown shortcut; use @yearly"),
        ("@every 5m", 1, "use every 90s"),
        ("@reboot", 1, "give a time"),
        ("@daily 5", 1, "unknown shortcut; use @yearly"),
    ];
    for (text, position, problem) in cases {
        let error = refusal(text);
        assert!(error.problem.contains(problem), "{text:?}: {error}");
        assert_eq!(error.position, position, "{text:?}: {error}");
    }
}

#[test]
fn an_impossible_date_is_rejected() {
    for text in
        ["0 0 31 2 *", "0 0 30 FEB ?", "0 0 31 4,6,9,11 *", "0 0 L-29 2 *", "0 0 30W 2 *", "0 0 0 30-31 2 *"]
    {
        let error = refusal(text);
        assert!(error.problem.starts_with("none of the selected months has such a day"), "{error}");
        assert_eq!(error.position, if text.split(' ').count() == 6 { 7 } else { 5 }, "{text}");
    }
    for text in ["0 0 29 2 *", "0 0 31 2,3 *", "0 0 31 2 MON", "0 0 L 2 *", "0 0 L-28 2 *", "0 0 * 2 MON#5"] {
        assert!(text.parse::<Cron>().is_ok(), "{text}");
    }
}

#[test]
fn the_error_is_marked_in_the_expression() {
    let error = refusal("  0 25 * * *");
    assert_eq!(error.pointed(), "0 25 * * *\n  ^");
    let shown =
        "cron expression \"0 25 * * *\", at position 3: the hour 25 is out of range; hours are 0 to 23";
    assert_eq!(error.to_string(), shown);
    let endless = refusal(&"1,".repeat(10_000));
    assert!(endless.expression.len() < 600);
}

#[test]
fn no_expression_makes_it_panic() {
    use proptest::prelude::*;
    proptest!(|(text in "[0-9*/,?LW#@A-Zü -]{0,40}")| {
        if let Err(error) = text.parse::<Cron>() {
            prop_assert!(error.position >= 1 && error.position <= text.trim().chars().count() + 1);
        }
    });
}
