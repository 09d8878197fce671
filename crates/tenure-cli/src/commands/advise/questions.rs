//! The same, asked on a terminal: only what matters after what was answered.

use std::io::{BufRead, Write};

use clap::ValueEnum;

use crate::args::advise::{Have, Load, Need, Order, Place, Two, Wishes};
use crate::exit::Failure;

/// Asks until everything that matters is answered. The end of the input leaves the rest open.
pub(super) fn ask(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<Wishes, Failure> {
    let mut asking = Asking { input, output };
    let mut wishes = Wishes { need: asking.one("What is it for?")?, ..Wishes::default() };
    wishes.place = asking.one("Where does it run?")?;
    if wishes.place.unwrap_or(Place::Many) == Place::Many {
        wishes.have = asking.some::<Have>("What is there already? Several, with commas.")?;
        let elects = matches!(wishes.need.unwrap_or(Need::Leader), Need::Leader | Need::Names);
        if elects {
            wishes.two = asking.one("May two do it at once, for a moment, when the network is cut?")?;
        }
        if elects && wishes.two.unwrap_or(Two::Never) == Two::Never {
            if wishes.have.contains(&Have::Postgres) {
                wishes.writes_to_postgres = asking.yes("Is what the leader writes in that PostgreSQL?")?;
            } else {
                wishes.state = asking.yes("Must a little state be agreed on too?")?;
            }
        }
    }
    if matches!(wishes.need, Some(Need::Tasks | Need::Resources)) {
        wishes.order = asking.one::<Order>("In which order is it handed out?")?;
    }
    wishes.load = asking.one::<Load>("How much is there to do?")?;
    Ok(wishes)
}

struct Asking<'a> {
    input: &'a mut dyn BufRead,
    output: &'a mut dyn Write,
}

impl Asking<'_> {
    /// One of the values, by its number or its word; nothing is the first. `None` at the end of the input.
    fn one<T: ValueEnum>(&mut self, question: &str) -> Result<Option<T>, Failure> {
        self.offer::<T>(question)?;
        loop {
            let Some(line) = self.line()? else { return Ok(None) };
            if line.is_empty() {
                return Ok(T::value_variants().first().cloned());
            }
            match chosen(&line) {
                Some(value) => return Ok(Some(value)),
                None => write!(self.output, "  {line:?} is none of them; a number or a word, please: ")?,
            }
            self.output.flush()?;
        }
    }

    /// Some of the values.
    fn some<T: ValueEnum>(&mut self, question: &str) -> Result<Vec<T>, Failure> {
        self.offer::<T>(question)?;
        loop {
            let Some(line) = self.line()? else { return Ok(Vec::new()) };
            let words = line.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
            match words.map(chosen).collect::<Option<Vec<T>>>() {
                Some(values) => return Ok(values),
                None => write!(self.output, "  not all of these are there; numbers or words, please: ")?,
            }
            self.output.flush()?;
        }
    }

    fn yes(&mut self, question: &str) -> Result<bool, Failure> {
        write!(self.output, "{question} [y/N] ")?;
        self.output.flush()?;
        Ok(self.line()?.is_some_and(|line| line.to_lowercase().starts_with('y')))
    }

    fn offer<T: ValueEnum>(&mut self, question: &str) -> Result<(), Failure> {
        writeln!(self.output, "{question}")?;
        for (n, value) in T::value_variants().iter().enumerate() {
            let Some(value) = value.to_possible_value() else { continue };
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            writeln!(self.output, "  {} {:<11} {help}", n + 1, value.get_name())?;
        }
        write!(self.output, "> ")?;
        Ok(self.output.flush()?)
    }

    fn line(&mut self) -> Result<Option<String>, Failure> {
        let mut line = String::new();
        let read = self.input.read_line(&mut line)?;
        Ok((read > 0).then(|| line.trim().to_owned()))
    }
}

fn chosen<T: ValueEnum>(word: &str) -> Option<T> {
    match word.parse::<usize>() {
        Ok(n) => T::value_variants().get(n.checked_sub(1)?).cloned(),
        Err(_) => T::from_str(word, true).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(text: &str) -> (Wishes, String) {
        let mut output = Vec::new();
        let wishes = ask(&mut text.as_bytes(), &mut output).unwrap();
        (wishes, String::from_utf8(output).unwrap())
    }

    #[test]
    fn only_what_matters_is_asked() {
        let (wishes, said) = answered("leader\nmachine\n\n");
        assert_eq!(
            (wishes.need, wishes.place, wishes.load),
            (Some(Need::Leader), Some(Place::Machine), Some(Load::Light))
        );
        assert!(!said.contains("already") && !said.contains("handed out"), "{said}");
        let (wishes, said) = answered("4\n3\npostgres, kubernetes\nstrict\ncontended\n");
        assert_eq!((wishes.need, wishes.order), (Some(Need::Tasks), Some(Order::Strict)));
        assert_eq!(wishes.have, [Have::Postgres, Have::Kubernetes]);
        assert!(!said.contains("May two"), "{said}");
    }

    #[test]
    fn nonsense_is_asked_again_and_the_end_leaves_the_rest_open() {
        let (wishes, said) = answered("nonsense\n0\n7\n1\nmany\nmoon\netcd\n1\nyes\n");
        assert_eq!((wishes.need, wishes.two, wishes.state), (Some(Need::Leader), Some(Two::Never), true));
        assert_eq!((wishes.have.as_slice(), wishes.load), (&[Have::Etcd][..], None));
        assert_eq!(said.matches("none of them").count(), 3, "{said}");
        assert!(said.contains("not all of these"), "{said}");
    }
}
