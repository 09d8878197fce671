//! Parser of cron expressions; every error has a position.

use super::days::{DayOfMonthField, DayOfWeekField, Days};
use super::field::Field;
use super::reader::Reader;
use super::{Cron, CronError};

/// Maximum length of an expression, in characters.
const LENGTH_MAX: usize = 500;

const FIVE: &str = "5 fields: minute, hour, day of month, month, day of week";

const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * SUN"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

pub(super) fn parse(text: &str) -> Result<Cron, CronError> {
    let text = text.trim();
    let chars: Vec<char> = text.chars().take(LENGTH_MAX + 1).collect();
    let reader = Reader { chars: &chars, at: 0, end: chars.len() };
    if chars.len() > LENGTH_MAX {
        let problem = format!(
            "the expression has more than {LENGTH_MAX} characters; split it into several \
             schedules"
        );
        return Err(reader.wrong(LENGTH_MAX, problem));
    }
    if text.starts_with('@') {
        let mut cron = parse(nickname(&reader, text)?)?;
        cron.text = text.into();
        return Ok(cron);
    }
    let fields = fields(&reader)?;
    let (mut seconds, mut minutes, mut hours, mut months) = (1, 0, 0, 0);
    let mut days = Days::default();
    for (field, (start, end)) in &fields {
        let word = &mut Reader { at: *start, end: *end, ..reader };
        match field {
            Field::Second => seconds = set(word, *field)?,
            Field::Minute => minutes = set(word, *field)?,
            Field::Hour => hours = set(word, *field)?,
            Field::DayOfMonth => days.of_month = day_field(word, *field, of_month)?,
            Field::Month => months = set(word, *field)?,
            Field::DayOfWeek => days.of_week = day_field(word, *field, of_week)?,
        }
    }
    if !days.possible(months) {
        let place =
            fields.iter().find(|(field, _)| *field == Field::DayOfMonth).map_or(0, |(_, (start, _))| *start);
        let problem = "none of the selected months has such a day; select other months, or use L for the last day of each";
        return Err(reader.wrong(place, problem));
    }
    Ok(Cron { text: text.into(), seconds, minutes, hours, months, days })
}

fn nickname(reader: &Reader<'_>, text: &str) -> Result<&'static str, CronError> {
    let known = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let problem = match known {
        Some((_, expression)) => return Ok(expression),
        None if text.starts_with("@every") => "@every is an interval, not a cron expression; use every 90s",
        None if text == "@reboot" => "@reboot is not supported; give a time",
        None => "unknown shortcut; use @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly",
    };
    Err(reader.wrong(0, problem))
}

/// Start and end of a field in the text.
type FieldSpan = (usize, usize);

/// The fields with their positions.
fn fields(reader: &Reader<'_>) -> Result<Vec<(Field, FieldSpan)>, CronError> {
    let chars = reader.chars;
    let mut words: Vec<FieldSpan> = Vec::new();
    for (at, _) in chars.iter().enumerate().filter(|(_, c)| !c.is_whitespace()) {
        match words.last_mut() {
            Some((_, end)) if *end == at => *end = at + 1,
            _ => words.push((at, at + 1)),
        }
    }
    let problem = match words.len() {
        0 => return Err(reader.wrong(0, format!("the expression is empty; give {FIVE}"))),
        5 | 6 => {
            let fields = Field::ALL.into_iter().skip(6 - words.len());
            return Ok(fields.zip(words).collect());
        }
        count @ 1..=4 => {
            let missing = Field::ALL[count + 1].name();
            return Err(reader.wrong(chars.len(), format!("the {missing} is missing; give {FIVE}")));
        }
        7 => "a seventh field for years is not supported; use `start_at_ms` and `end_at_ms`",
        _ => "too many fields; give 5, or 6 starting with seconds",
    };
    Err(reader.wrong(words[6].0, problem))
}

/// A lone `*` or `?` means any day; otherwise the items are combined.
fn day_field<T: Default>(
    word: &mut Reader<'_>,
    field: Field,
    item: fn(&mut Reader<'_>, &mut T) -> Result<(), CronError>,
) -> Result<Option<T>, CronError> {
    let text = &word.chars[word.at..word.end];
    if matches!(text, ['*'] | ['?']) {
        return Ok(None);
    }
    if let Some(at) = text.iter().position(|c| *c == '?') {
        let problem = format!("? must stand alone and means any {}; remove the rest, or the ?", field.name());
        return Err(word.wrong(word.at + at, problem));
    }
    let mut set = T::default();
    list(word, |word| item(word, &mut set))?;
    Ok(Some(set))
}

fn set(word: &mut Reader<'_>, field: Field) -> Result<u64, CronError> {
    let mut set = 0;
    list(word, |word| {
        set |= word.item(field)?;
        Ok(())
    })?;
    Ok(set)
}

fn list(
    word: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<(), CronError>,
) -> Result<(), CronError> {
    loop {
        if matches!(word.peek(), None | Some(',')) {
            return Err(word.wrong(word.at, "a value is missing here; add one, or remove the comma"));
        }
        item(word)?;
        match word.peek() {
            None => return Ok(()),
            Some(',') => word.at += 1,
            Some(c) => return Err(word.unexpected(c)),
        }
    }
}

fn of_month(word: &mut Reader<'_>, set: &mut DayOfMonthField) -> Result<(), CronError> {
    let start = word.at;
    if word.take('L') {
        if word.take('W') {
            set.last_weekday = true;
        } else if word.take('-') {
            let from = word.at;
            let before = word.number("the number of days before the last")?;
            if !(1..=30).contains(&before) {
                let problem = format!("no month has a day {before} days before its last; use 1 to 30");
                return Err(word.wrong(from, problem));
            }
            set.before_last |= 1 << before;
        } else {
            set.before_last |= 1;
        }
        return Ok(());
    }
    if word.take('W') {
        let problem = "W must follow a day, as in 15W for the weekday nearest to the 15th; or use LW";
        return Err(word.wrong(start, problem));
    }
    let days = word.item(Field::DayOfMonth)?;
    if word.take('W') {
        if days.count_ones() != 1 {
            return Err(word.wrong(word.at - 1, "W must follow a single day; list them, as in 1W,15W"));
        }
        set.nearest |= days;
    } else {
        set.days |= days;
    }
    Ok(())
}

fn of_week(word: &mut Reader<'_>, set: &mut DayOfWeekField) -> Result<(), CronError> {
    let start = word.at;
    if word.take('L') {
        let problem = "L must follow a day of the week, as in FRIL for the last Friday; for Saturday use SAT";
        return Err(word.wrong(start, problem));
    }
    let days = word.item(Field::DayOfWeek)?;
    let mark = word.at;
    if word.take('L') {
        set.last |= word.single(days, mark, 'L')?;
    } else if word.take('#') {
        let nth = word.number("the number of the weekday in the month, 1 to 5,")?;
        if !(1..=5).contains(&nth) {
            let problem = format!("no month has a {nth}th; use #1 to #5, or L for the last");
            return Err(word.wrong(mark + 1, problem));
        }
        set.nth[nth as usize - 1] |= word.single(days, mark, '#')?;
    } else {
        set.all |= days;
    }
    Ok(())
}
