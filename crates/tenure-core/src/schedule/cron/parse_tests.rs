//! Expressions that make no sense: where, and what would do.

use super::*;

fn refusal(text: &str) -> CronError {
    match text.parse::<Cron>() {
        Ok(_) => panic!("{text:?} is accepted"),
        Err(error) => error,
    }
}

#[test]
fn each_mistake_has_its_position_and_its_remedy() {
    let cases = [
        ("", 1, "it is empty; give 5 fields"),
        ("   ", 1, "it is empty"),
        ("* * *", 6, "the month is missing; give 5 fields"),
        ("5", 2, "the hour is missing"),
        ("0 0 1 1 * 2026 2027", 16, "years, is not known; give `start_ms`"),
        ("* * * * * * * *", 13, "too many fields"),
        ("60 * * * *", 1, "the minute 60 does not exist; minutes are 0 to 59"),
        ("* 24 * * *", 3, "hours are 0 to 23"),
        ("* * 0 * *", 5, "the day of month 0 does not exist"),
        ("* * * 13 *", 7, "months are 1 to 12, or JAN to DEC"),
        ("* * * * 8", 9, "0 to 7, both Sunday"),
        ("99 * * * * *", 1, "the second 99 does not exist"),
        ("* * * FOO *", 7, "FOO is no month"),
        ("* * * * MONDAY", 9, "say MON"),
        ("* * * JANUARY *", 7, "say JAN"),
        ("MON * * * *", 1, "MON is no minute"),
        ("*/0 * * * *", 3, "a step of 0 never gets on"),
        (
            "*/90 * * * *",
            3,
            "leaves only the first of *; an interval that no minute can hold is said as in every 90m",
        ),
        ("1-5/10 * * * *", 5, "leaves only the first of 1-5"),
        ("*/ * * * *", 3, "the step is missing here"),
        ("*/5/5 * * * *", 4, "a step follows *, a value or a range, once"),
        ("0 22-2 * * *", 3, "22-2 goes backwards; say 22-23,0-2"),
        ("0 0 * NOV-FEB *", 7, "say NOV-12,1-FEB"),
        ("0 0 * * FRI-MON", 9, "say FRI-6,0-MON"),
        ("5- * * * *", 3, "the minute is missing here"),
        ("5-* * * * *", 3, "leave out the range"),
        ("-5 * * * *", 1, "no minute is negative"),
        ("1,,2 * * * *", 3, "a value is missing here"),
        ("1, * * * *", 3, "take out the comma"),
        (",1 * * * *", 1, "a value is missing here"),
        ("1;2 * * * *", 2, "';' is not expected here"),
        ("0 0 1ü * *", 6, "'ü' is not expected here"),
        ("99999999999 * * * *", 1, "is too large"),
        ("H * * * *", 1, "spread schedules by `jitter_ms`"),
        ("? * * * *", 1, "for any minute say *"),
        ("0 0 1,? * *", 7, "? stands alone"),
        ("L * * * *", 1, "days of a month know L and W"),
        ("5L * * * *", 2, "do not stand here"),
        ("0 0 * LW *", 7, "do not stand here"),
        ("0 0 W * *", 5, "W follows a day, as in 15W"),
        ("0 0 1-5W * *", 8, "list them, as in 1W,15W"),
        ("0 0 L-31 * *", 7, "say 1 to 30"),
        ("0 0 L-0 * *", 7, "say 1 to 30"),
        ("0 0 15L * *", 7, "do not stand here"),
        ("0 0 * * L", 9, "as in FRIL for the last Friday"),
        ("0 0 * * 5W", 10, "days of a week L and #"),
        ("0 0 * * FRI#6", 13, "no month has a 6th; say #1 to #5, or L"),
        ("0 0 * * FRI#0", 13, "say #1 to #5"),
        ("0 0 * * FRI#", 13, "which one of the month, 1 to 5, is missing"),
        ("0 0 * * MON-FRI#2", 16, "list them, as in MON#1,FRI#1"),
        ("0 0 * * MON-FRIL", 16, "list them, as in MONL,FRIL"),
        ("@dayly", 1, "none of @yearly"),
        ("@every 5m", 1, "say every 90s"),
        ("@reboot", 1, "give a time"),
        ("@daily 5", 1, "none of @yearly"),
    ];
    for (text, position, problem) in cases {
        let error = refusal(text);
        assert!(error.problem.contains(problem), "{text:?}: {error}");
        assert_eq!(error.position, position, "{text:?}: {error}");
    }
}

#[test]
fn a_date_that_never_comes_is_refused() {
    for text in
        ["0 0 31 2 *", "0 0 30 FEB ?", "0 0 31 4,6,9,11 *", "0 0 L-29 2 *", "0 0 30W 2 *", "0 0 0 30-31 2 *"]
    {
        let error = refusal(text);
        assert!(error.problem.starts_with("no chosen month ever has such a day"), "{error}");
        assert_eq!(error.position, if text.split(' ').count() == 6 { 7 } else { 5 }, "{text}");
    }
    for text in ["0 0 29 2 *", "0 0 31 2,3 *", "0 0 31 2 MON", "0 0 L 2 *", "0 0 L-28 2 *", "0 0 * 2 MON#5"] {
        assert!(text.parse::<Cron>().is_ok(), "{text}");
    }
}

#[test]
fn the_mistake_is_pointed_at_in_the_whole_expression() {
    let error = refusal("  0 25 * * *");
    assert_eq!(error.pointed(), "0 25 * * *\n  ^");
    let shown =
        "cron expression \"0 25 * * *\", at position 3: the hour 25 does not exist; hours are 0 to 23";
    assert_eq!(error.to_string(), shown);
    let endless = refusal(&"1,".repeat(10_000));
    assert!(endless.expression.len() < 600);
}

#[test]
fn nothing_that_is_typed_makes_it_panic() {
    use proptest::prelude::*;
    proptest!(|(text in "[0-9*/,?LW#@A-Zü -]{0,40}")| {
        if let Err(error) = text.parse::<Cron>() {
            prop_assert!(error.position >= 1 && error.position <= text.trim().chars().count() + 1);
        }
    });
}
