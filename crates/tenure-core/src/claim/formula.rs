//! Small arithmetic, for the priority of a pool's requests.

use std::str::FromStr;

use crate::port::NewRequest;

/// The longest formula, in bytes.
const LENGTH_MAX: usize = 500;

/// How deep parentheses, functions and signs may be nested.
const DEPTH_MAX: usize = 32;

/// An expression over what is known of a request: `+ - * / ( )`, numbers, `min(…, …)`, `max(…, …)`, and the variables
/// `base`, `age_minutes`, `simple`, `requires` and `prefers`.
///
/// ```
/// use tenure_core::claim::{Facts, Formula};
///
/// let formula: Formula = "base + min(age_minutes, 30) + 50 * simple".parse().unwrap();
/// let facts = Facts { base: 100, age_ms: 3_600_000, requires: 0, prefers: 0 };
/// assert_eq!(formula.value(&facts), 180);
///
/// let error = "base + ages".parse::<Formula>().unwrap_err();
/// assert_eq!(error.position, 8);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Formula(Vec<Step>);

/// What is known of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its base.
    pub base: i32,
    /// For how long it has waited, in milliseconds.
    pub age_ms: i64,
    /// How many tags it requires.
    pub requires: usize,
    /// How many it prefers.
    pub prefers: usize,
}

impl Facts {
    /// What is known `now_ms` of a request that was made at `created_at_ms`.
    pub fn of(request: &NewRequest, created_at_ms: i64, now_ms: i64) -> Facts {
        Facts {
            base: request.base,
            age_ms: now_ms.saturating_sub(created_at_ms).max(0),
            requires: request.requires.len(),
            prefers: request.prefers.len(),
        }
    }
}

/// Where a formula makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at position {position}: {problem}")]
pub struct FormulaError {
    /// Where, in characters, counted from 1.
    pub position: usize,
    /// What is wrong there, and what would do.
    pub problem: String,
}

/// A step of the sum, on a stack.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Number(f64),
    Variable(Variable),
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Variable {
    Base,
    AgeMinutes,
    Simple,
    Requires,
    Prefers,
}

impl Formula {
    /// The priority of such a request: rounded down; 0 where the formula divides nothing by nothing.
    pub fn value(&self, facts: &Facts) -> i64 {
        let mut stack: Vec<f64> = Vec::new();
        for step in &self.0 {
            let value = match *step {
                Step::Number(number) => number,
                Step::Variable(variable) => variable.of(facts),
                Step::Negate => -pop(&mut stack),
                two => {
                    let (right, left) = (pop(&mut stack), pop(&mut stack));
                    match two {
                        Step::Add => left + right,
                        Step::Subtract => left - right,
                        Step::Multiply => left * right,
                        Step::Divide => left / right,
                        Step::Min => left.min(right),
                        _ => left.max(right),
                    }
                }
            };
            stack.push(value);
        }
        // A cast knows what to do with what is no number, and with what is too large.
        pop(&mut stack).floor() as i64
    }
}

fn pop(stack: &mut Vec<f64>) -> f64 {
    stack.pop().unwrap_or(0.0)
}

impl Variable {
    fn of(self, facts: &Facts) -> f64 {
        match self {
            Variable::Base => f64::from(facts.base),
            Variable::AgeMinutes => facts.age_ms as f64 / 60_000.0,
            Variable::Simple => f64::from(u8::from(facts.requires == 0 && facts.prefers == 0)),
            Variable::Requires => facts.requires as f64,
            Variable::Prefers => facts.prefers as f64,
        }
    }
}

impl FromStr for Formula {
    type Err = FormulaError;
    fn from_str(text: &str) -> Result<Formula, FormulaError> {
        if text.len() > LENGTH_MAX {
            let problem = format!("the formula has {} bytes; at most {LENGTH_MAX} are allowed", text.len());
            return Err(FormulaError { position: LENGTH_MAX + 1, problem });
        }
        let mut parser = Parser { text: text.chars().collect(), at: 0, depth: 0, steps: Vec::new() };
        parser.sum()?;
        match parser.peek() {
            None => Ok(Formula(parser.steps)),
            Some(')') => Err(parser.wrong("this ) closes nothing; take it out".into())),
            Some(found) => Err(parser.wrong(format!("{found:?} is not expected here; use + - * or /"))),
        }
    }
}

/// Reads by recursive descent: a sum of products of signed atoms.
struct Parser {
    text: Vec<char>,
    at: usize,
    depth: usize,
    steps: Vec<Step>,
}

impl Parser {
    fn peek(&mut self) -> Option<char> {
        while self.text.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// The next character, if it is one of these.
    fn take(&mut self, wanted: &[char]) -> Option<char> {
        let found = self.peek().filter(|c| wanted.contains(c))?;
        self.at += 1;
        Some(found)
    }

    fn wrong(&self, problem: String) -> FormulaError {
        FormulaError { position: self.at + 1, problem }
    }

    fn expect(&mut self, wanted: char) -> Result<(), FormulaError> {
        match self.take(&[wanted]) {
            Some(_) => Ok(()),
            None => Err(self.wrong(format!("{wanted:?} is missing here"))),
        }
    }

    fn deeper(&mut self) -> Result<(), FormulaError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format!("nested more than {DEPTH_MAX} deep; make it simpler")));
        }
        Ok(())
    }

    fn sum(&mut self) -> Result<(), FormulaError> {
        self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            self.product()?;
            self.steps.push(if sign == '+' { Step::Add } else { Step::Subtract });
        }
        Ok(())
    }

    fn product(&mut self) -> Result<(), FormulaError> {
        self.signed()?;
        while let Some(sign) = self.take(&['*', '/']) {
            self.signed()?;
            self.steps.push(if sign == '*' { Step::Multiply } else { Step::Divide });
        }
        Ok(())
    }

    fn signed(&mut self) -> Result<(), FormulaError> {
        match self.take(&['+', '-']) {
            None => self.atom(),
            Some(sign) => {
                self.deeper()?;
                self.signed()?;
                self.depth -= 1;
                if sign == '-' {
                    self.steps.push(Step::Negate);
                }
                Ok(())
            }
        }
    }

    fn atom(&mut self) -> Result<(), FormulaError> {
        const WANTED: &str = "a number, a variable, min(, max( or ( is missing here";
        match self.peek() {
            None => Err(self.wrong(WANTED.into())),
            Some('(') => {
                self.deeper()?;
                self.at += 1;
                self.sum()?;
                self.depth -= 1;
                self.expect(')')
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.named(),
            Some(found) => Err(self.wrong(format!("{found:?} is not expected; {WANTED}"))),
        }
    }

    fn number(&mut self) -> Result<(), FormulaError> {
        let start = self.at;
        let word = self.run(|c| c.is_ascii_digit() || c == '.');
        match word.parse::<f64>() {
            Ok(number) => {
                self.steps.push(Step::Number(number));
                Ok(())
            }
            Err(_) => Err(FormulaError { position: start + 1, problem: format!("{word:?} is no number") }),
        }
    }

    fn named(&mut self) -> Result<(), FormulaError> {
        let start = self.at;
        let word = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        let variable = match word.as_str() {
            "min" => return self.of_two(Step::Min),
            "max" => return self.of_two(Step::Max),
            "base" => Variable::Base,
            "age_minutes" => Variable::AgeMinutes,
            "simple" => Variable::Simple,
            "requires" => Variable::Requires,
            "prefers" => Variable::Prefers,
            _ => {
                let problem = format!(
                    "there is no {word:?}; there are base, age_minutes, simple, requires, prefers, min(a, b), max(a, b)"
                );
                return Err(FormulaError { position: start + 1, problem });
            }
        };
        self.steps.push(Step::Variable(variable));
        Ok(())
    }

    /// `(a, b, …)` of `min` or `max`: two or more.
    fn of_two(&mut self, step: Step) -> Result<(), FormulaError> {
        self.deeper()?;
        self.expect('(')?;
        self.sum()?;
        self.expect(',')?;
        loop {
            self.sum()?;
            self.steps.push(step);
            if self.take(&[',']).is_none() {
                break;
            }
        }
        self.depth -= 1;
        self.expect(')')
    }

    fn run(&mut self, of: impl Fn(char) -> bool) -> String {
        let word: String = self.text[self.at..].iter().take_while(|c| of(**c)).collect();
        self.at += word.len();
        word
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::PoolSettings;

    fn value(formula: &str) -> i64 {
        let facts = Facts { base: 100, age_ms: 150_000, requires: 2, prefers: 3 };
        formula.parse::<Formula>().unwrap().value(&facts)
    }

    #[test]
    fn products_go_before_sums_and_signs_before_both() {
        assert_eq!(value("2 + 3 * 4"), 14);
        assert_eq!(value("(2 + 3) * 4"), 20);
        assert_eq!(value("10 - 4 - 3"), 3);
        assert_eq!(value("100 / 5 / 2"), 10);
        assert_eq!(value("-2 * -3"), 6);
        assert_eq!(value("2 - -3"), 5);
        assert_eq!(value("min(5, 3) + max(1, 2, 9)"), 12);
        assert_eq!(value("base + age_minutes + simple + requires * 10 + prefers"), 125);
    }

    #[test]
    fn the_usual_formula_is_base_plus_a_point_a_minute_plus_fifty_for_the_simple() {
        let formula: Formula = PoolSettings::default().priority.parse().unwrap();
        let simple = Facts { base: 100, age_ms: 0, requires: 0, prefers: 0 };
        assert_eq!(formula.value(&simple), 150);
        assert_eq!(formula.value(&Facts { age_ms: 59_999, ..simple }), 150);
        assert_eq!(formula.value(&Facts { age_ms: 60_000, ..simple }), 151);
        assert_eq!(formula.value(&Facts { requires: 1, ..simple }), 100);
        assert_eq!(formula.value(&Facts { prefers: 1, ..simple }), 100);
    }

    #[test]
    fn nothing_by_nothing_is_nothing_and_too_much_is_the_most() {
        assert_eq!(value("0 / 0"), 0);
        assert_eq!(value("1 / 0"), i64::MAX);
        assert_eq!(value("-1 / 0"), i64::MIN);
    }

    #[test]
    fn a_mistake_is_found_where_it_is() {
        let cases = [
            ("", 1, "missing"),
            ("base +", 7, "missing"),
            ("base + ages", 8, "there is no \"ages\""),
            ("base base", 6, "not expected"),
            ("(base", 6, "')' is missing"),
            ("base)", 5, "closes nothing"),
            ("1.2.3", 1, "no number"),
            ("min(1)", 6, "',' is missing"),
            ("min 1", 5, "'(' is missing"),
            ("2 ^ 3", 3, "'^' is not expected"),
            ("2 * ü", 5, "'ü' is not expected"),
        ];
        for (text, position, said) in cases {
            let error = text.parse::<Formula>().unwrap_err();
            assert_eq!(error.position, position, "{text}: {error}");
            assert!(error.problem.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn length_and_depth_are_bounded() {
        assert!(format!("{}1", "1+".repeat(249)).parse::<Formula>().is_ok());
        assert!(format!("{}1", "1+".repeat(250)).parse::<Formula>().is_err());
        let nested = |n| format!("{}1{}", "(".repeat(n), ")".repeat(n));
        assert!(nested(32).parse::<Formula>().is_ok());
        assert!(nested(33).parse::<Formula>().is_err());
        assert!(format!("{}1", "-".repeat(400)).parse::<Formula>().is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,60}", facts in (any::<i32>(), any::<i64>())) {
            if let Ok(formula) = text.parse::<Formula>() {
                formula.value(&Facts { base: facts.0, age_ms: facts.1, requires: 1, prefers: 1 });
            }
        }

        #[test]
        fn near_formulas_neither(text in "[0-9a-z_+*/(),. -]{0,40}") {
            if let Err(error) = text.parse::<Formula>() {
                prop_assert!(error.position >= 1 && error.position <= text.len() + 1);
            }
        }

        #[test]
        fn sums_are_sums(a in -1000..1000i64, b in -1000..1000i64, c in 1..100i64) {
            prop_assert_eq!(value(&format!("{a} + {b} * {c}")), a + b * c);
            prop_assert_eq!(value(&format!("({a} - {b}) / {c}")), (a - b).div_euclid(c));
        }
    }
}
