//! Questions of `tenure advise` on a terminal. Skips those without effect after earlier answers.

use std::io::{BufRead, Write};

use clap::ValueEnum;

use crate::args::advise::{
    AdviseAnswers, AdviseNeed, DeploymentScope, DuplicatePolicy, Infrastructure, LoadLevel, OrderingNeed,
};
use crate::error::CliError;

/// Asks the questions. At the end of the input the remaining ones stay unanswered.
pub(super) fn ask(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<AdviseAnswers, CliError> {
    let mut prompter = Prompter { input, output };
    let mut answers =
        AdviseAnswers { use_case: prompter.one("What is the use case?")?, ..AdviseAnswers::default() };
    answers.topology = prompter.one("Where does the service run?")?;
    if answers.topology.unwrap_or(DeploymentScope::Cluster) == DeploymentScope::Cluster {
        answers.available = prompter
            .some::<Infrastructure>("Which systems are already available? Separate several with commas.")?;
        let elects =
            matches!(answers.use_case.unwrap_or(AdviseNeed::Leader), AdviseNeed::Leader | AdviseNeed::Names);
        if elects {
            answers.split_brain =
                prompter.one("Are two leaders at once acceptable during a network split?")?;
        }
        if elects && answers.split_brain.unwrap_or(DuplicatePolicy::Never) == DuplicatePolicy::Never {
            if answers.available.contains(&Infrastructure::Postgres) {
                answers.writes_to_postgres = prompter.yes("Does the leader write to that PostgreSQL?")?;
            } else {
                answers.replicated_state =
                    prompter.yes("Is a small amount of replicated state needed too?")?;
            }
        }
    }
    if matches!(answers.use_case, Some(AdviseNeed::Tasks | AdviseNeed::Resources)) {
        answers.order = prompter.one::<OrderingNeed>("In which order must work be assigned?")?;
    }
    answers.load = prompter.one::<LoadLevel>("What load do you expect?")?;
    Ok(answers)
}

struct Prompter<'a> {
    input: &'a mut dyn BufRead,
    output: &'a mut dyn Write,
}

impl Prompter<'_> {
    /// Asks for one value, by number or word; an empty line means the first. Returns `None` at the end of the input.
    fn one<T: ValueEnum>(&mut self, question: &str) -> Result<Option<T>, CliError> {
        self.offer::<T>(question)?;
        loop {
            let Some(line) = self.line()? else { return Ok(None) };
            if line.is_empty() {
                return Ok(T::value_variants().first().cloned());
            }
            match chosen(&line) {
                Some(value) => return Ok(Some(value)),
                None => write!(self.output, "  {line:?} is not an option; enter a number or a word: ")?,
            }
            self.output.flush()?;
        }
    }

    /// Asks for several values.
    fn some<T: ValueEnum>(&mut self, question: &str) -> Result<Vec<T>, CliError> {
        self.offer::<T>(question)?;
        loop {
            let Some(line) = self.line()? else { return Ok(Vec::new()) };
            let words = line.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
            match words.map(chosen).collect::<Option<Vec<T>>>() {
                Some(values) => return Ok(values),
                None => write!(self.output, "  some of these are not options; enter numbers or words: ")?,
            }
            self.output.flush()?;
        }
    }

    fn yes(&mut self, question: &str) -> Result<bool, CliError> {
        write!(self.output, "{question} [y/N] ")?;
        self.output.flush()?;
        Ok(self.line()?.is_some_and(|line| line.to_lowercase().starts_with('y')))
    }

    fn offer<T: ValueEnum>(&mut self, question: &str) -> Result<(), CliError> {
        writeln!(self.output, "{question}")?;
        for (n, value) in T::value_variants().iter().enumerate() {
            let Some(value) = value.to_possible_value() else { continue };
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            writeln!(self.output, "  {} {:<11} {help}", n + 1, value.get_name())?;
        }
        write!(self.output, "> ")?;
        Ok(self.output.flush()?)
    }

    fn line(&mut self) -> Result<Option<String>, CliError> {
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

    fn answered(text: &str) -> (AdviseAnswers, String) {
        let mut output = Vec::new();
        let answers = ask(&mut text.as_bytes(), &mut output).unwrap();
        (answers, String::from_utf8(output).unwrap())
    }

    #[test]
    fn only_relevant_questions_are_asked() {
        let (answers, output) = answered("leader\nmachine\n\n");
        assert_eq!(
            (answers.use_case, answers.topology, answers.load),
            (Some(AdviseNeed::Leader), Some(DeploymentScope::Machine), Some(LoadLevel::Light))
        );
        assert!(!output.contains("already") && !output.contains("assigned"), "{output}");
        let (answers, output) = answered("4\n3\npostgres, kubernetes\nstrict\ncontended\n");
        assert_eq!((answers.use_case, answers.order), (Some(AdviseNeed::Tasks), Some(OrderingNeed::Strict)));
        assert_eq!(answers.available, [Infrastructure::Postgres, Infrastructure::Kubernetes]);
        assert!(!output.contains("two leaders"), "{output}");
    }

    #[test]
    fn an_invalid_answer_is_asked_again_and_the_end_leaves_the_rest_unanswered() {
        let (answers, output) = answered("nonsense\n0\n7\n1\ncluster\nmoon\netcd\n1\nyes\n");
        assert_eq!(
            (answers.use_case, answers.split_brain, answers.replicated_state),
            (Some(AdviseNeed::Leader), Some(DuplicatePolicy::Never), true)
        );
        assert_eq!((answers.available.as_slice(), answers.load), (&[Infrastructure::Etcd][..], None));
        assert_eq!(output.matches("is not an option").count(), 3, "{output}");
        assert!(output.contains("some of these are not"), "{output}");
    }
}
