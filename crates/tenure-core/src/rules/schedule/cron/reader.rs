//! Reader of one field of an expression: values, ranges and steps.

use super::CronError;
use super::field::Field;

/// The unread rest of a field; positions refer to the whole expression.
pub(super) struct Reader<'a> {
    /// The whole expression.
    pub(super) chars: &'a [char],
    /// Current position.
    pub(super) at: usize,
    /// End of the field.
    pub(super) end: usize,
}

impl Reader<'_> {
    pub(super) fn wrong(&self, at: usize, problem: impl Into<String>) -> CronError {
        let expression = self.chars.iter().collect();
        CronError { expression, position: at + 1, problem: problem.into() }
    }

    pub(super) fn unexpected(&self, c: char) -> CronError {
        let problem = match c {
            'L' | 'l' | 'W' | 'w' | '#' => {
                "L, W and # are not allowed here; days of a month support L and W, days of a week support L \
                 and #"
                    .into()
            }
            '/' => "a step must follow *, a value or a range, once; as in */15".into(),
            _ => format!("unexpected {c:?}; separate values with commas and fields with spaces"),
        };
        self.wrong(self.at, problem)
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.chars[..self.end].get(self.at).copied()
    }

    pub(super) fn take(&mut self, c: char) -> bool {
        let here = self.peek().is_some_and(|it| it.eq_ignore_ascii_case(&c));
        self.at += usize::from(here);
        here
    }

    /// Parses `*`, `a` or `a-b`, optionally with a step, as bits.
    pub(super) fn item(&mut self, field: Field) -> Result<u64, CronError> {
        let start = self.at;
        let (least, most, is_open) = if self.take('*') {
            (field.least(), field.last(), true)
        } else {
            let least = self.value(field)?;
            if self.take('-') {
                (least, self.until(field, start, least)?, true)
            } else {
                (least, least, false)
            }
        };
        if !self.take('/') {
            return Ok(bits(field, least, most, 1));
        }
        let most = if is_open { most } else { field.last().max(least) };
        let at = self.at;
        let step = self.number("the step")?;
        if step == 0 {
            return Err(self.wrong(at, "a step of 0 never advances; use 1 or more"));
        }
        if step > most - least {
            let written: String = self.chars[start..at - 1].iter().collect();
            let problem = format!(
                "a step of {step} selects only the first value of {written}; for a longer interval use for \
                 example every 90m"
            );
            return Err(self.wrong(at, problem));
        }
        Ok(bits(field, least, most, step as usize))
    }

    /// Parses the end of a range that started at `start`.
    fn until(&mut self, field: Field, start: usize, least: u32) -> Result<u32, CronError> {
        let mut most = self.value(field)?;
        if field == Field::DayOfWeek && most == 0 {
            // Sunday ends the week in a range such as `SAT-SUN`.
            most = if least == 0 { 0 } else { 7 };
        }
        if most < least {
            let written: String = self.chars[start..self.at].iter().collect();
            let (from, to) = written.split_once('-').unwrap_or_default();
            let problem =
                format!("{written} goes backwards; use {from}-{},{}-{to}", field.last(), field.least());
            return Err(self.wrong(start, problem));
        }
        Ok(most)
    }

    /// Parses a number or a name.
    fn value(&mut self, field: Field) -> Result<u32, CronError> {
        let start = self.at;
        match self.peek() {
            Some(c) if c.is_ascii_digit() => {
                let value = self.number("a value")?;
                if (field.least()..=field.most()).contains(&value) {
                    return Ok(value);
                }
                let problem = format!("the {} {value} is out of range; {}", field.name(), field.values());
                Err(self.wrong(start, problem))
            }
            Some(c) if c.is_alphabetic() => self.named(field),
            Some('?') => {
                Err(self.wrong(start, format!("? is allowed for days only; use * for any {}", field.name())))
            }
            Some('-') => {
                Err(self.wrong(start, format!("a {} cannot be negative; {}", field.name(), field.values())))
            }
            Some('*') => {
                Err(self.wrong(start, "* selects all values and cannot end a range; remove the range"))
            }
            Some(c) if c != ',' => Err(self.unexpected(c)),
            _ => Err(self.wrong(start, format!("the {} is missing here; {}", field.name(), field.values()))),
        }
    }

    fn named(&mut self, field: Field) -> Result<u32, CronError> {
        let start = self.at;
        let word: String = self.chars[start..self.end].iter().take_while(|c| c.is_alphabetic()).collect();
        let first: String = word.chars().take(3).collect();
        let rest = &word[first.len()..];
        let problem = match field.named(&first) {
            Some(value)
                if rest.is_empty() || (field == Field::DayOfWeek && rest.eq_ignore_ascii_case("L")) =>
            {
                self.at += 3;
                return Ok(value);
            }
            Some(_) => format!("{word} is a long name; use {}", first.to_uppercase()),
            None if word.eq_ignore_ascii_case("H") => {
                "H is not supported; give a number, and spread schedules with `jitter_ms`".into()
            }
            None if matches!(word.to_ascii_uppercase().as_str(), "L" | "W" | "LW") => {
                return Err(self.unexpected('L'));
            }
            None => format!("{word} is not a {}; {}", field.name(), field.values()),
        };
        Err(self.wrong(start, problem))
    }

    pub(super) fn number(&mut self, what: &str) -> Result<u32, CronError> {
        let start = self.at;
        let digits: String = self.chars[start..self.end].iter().take_while(|c| c.is_ascii_digit()).collect();
        self.at += digits.len();
        match digits.parse() {
            Ok(number) => Ok(number),
            Err(_) if digits.is_empty() => {
                Err(self.wrong(start, format!("{what} is missing here; give a number")))
            }
            Err(_) => Err(self.wrong(start, format!("{digits} is too large; use a smaller number"))),
        }
    }

    /// The single element of `days`.
    pub(super) fn single(&self, days: u64, mark: usize, c: char) -> Result<u64, CronError> {
        if days.count_ones() == 1 {
            return Ok(days);
        }
        let example = if c == 'L' { "MONL,FRIL" } else { "MON#1,FRI#1" };
        Err(self.wrong(mark, format!("{c} must follow a single day of the week; list them, as in {example}")))
    }
}

fn bits(field: Field, least: u32, most: u32, step: usize) -> u64 {
    let is_week = field == Field::DayOfWeek;
    let place = |value: u32| if is_week { value % 7 } else { value };
    (least..=most).step_by(step).fold(0, |set, value| set | 1 << place(value))
}
