//! Priority formulas of pools.

use std::str::FromStr;

use crate::port::PoolRequest;

/// Maximum length of a formula, in bytes.
const LENGTH_MAX: usize = 500;

/// Maximum nesting of parentheses, functions and signs.
const DEPTH_MAX: usize = 32;

/// An arithmetic expression over properties of a pool request: `+ - * / ( )`, numbers, `min(…, …)`, `max(…, …)`, and
/// the variables `base_priority`, `age_minutes`, `simple`, `required_tags` and `preferred_tags`.
///
/// ```
/// use tenure_core::rules::work::{Formula, PriorityInputs};
///
/// let formula: Formula = "base_priority + min(age_minutes, 30) + 50 * simple".parse().unwrap();
/// let inputs = PriorityInputs { base_priority: 100, age_ms: 3_600_000, required_tags: 0, preferred_tags: 0 };
/// assert_eq!(formula.value(&inputs), 180);
///
/// let error = "simple + ages".parse::<Formula>().unwrap_err();
/// assert_eq!(error.position, 10);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Formula(Vec<Step>);

/// Values of the variables for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityInputs {
    /// Base priority.
    pub base_priority: i32,
    /// How long the request has waited, in milliseconds.
    pub age_ms: i64,
    /// Number of required tags.
    pub required_tags: usize,
    /// Number of preferred tags.
    pub preferred_tags: usize,
}

impl PriorityInputs {
    /// The values at `now_ms` for a request created at `created_at_ms`.
    pub fn of(request: &PoolRequest, created_at_ms: i64, now_ms: i64) -> PriorityInputs {
        PriorityInputs {
            base_priority: request.base_priority,
            age_ms: now_ms.saturating_sub(created_at_ms).max(0),
            required_tags: request.required_tags.len(),
            preferred_tags: request.preferred_tags.len(),
        }
    }
}

/// Where and why a formula is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at position {position}: {problem}")]
pub struct FormulaError {
    /// Position in characters, from 1.
    pub position: usize,
    /// Problem, with a remedy.
    pub problem: String,
}

/// An instruction of the stack machine.
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
    /// The priority of a request, rounded down; 0 if the formula divides zero by zero.
    pub fn value(&self, inputs: &PriorityInputs) -> i64 {
        let mut stack: Vec<f64> = Vec::new();
        for step in &self.0 {
            let value = match *step {
                Step::Number(number) => number,
                Step::Variable(variable) => variable.of(inputs),
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
        // The cast maps NaN to 0 and saturates large values.
        pop(&mut stack).floor() as i64
    }
}

fn pop(stack: &mut Vec<f64>) -> f64 {
    stack.pop().unwrap_or(0.0)
}

impl Variable {
    fn of(self, inputs: &PriorityInputs) -> f64 {
        match self {
            Variable::Base => f64::from(inputs.base_priority),
            Variable::AgeMinutes => inputs.age_ms as f64 / 60_000.0,
            Variable::Simple => f64::from(u8::from(inputs.required_tags == 0 && inputs.preferred_tags == 0)),
            Variable::Requires => inputs.required_tags as f64,
            Variable::Prefers => inputs.preferred_tags as f64,
        }
    }
}

impl FromStr for Formula {
    type Err = FormulaError;
    fn from_str(text: &str) -> Result<Formula, FormulaError> {
        if text.len() > LENGTH_MAX {
            let problem = format!("the formula has {} bytes; the maximum is {LENGTH_MAX}", text.len());
            return Err(FormulaError { position: LENGTH_MAX + 1, problem });
        }
        let mut parser = Parser { text: text.chars().collect(), at: 0, depth: 0, steps: Vec::new() };
        parser.sum()?;
        match parser.peek() {
            None => Ok(Formula(parser.steps)),
            Some(')') => Err(parser.wrong("this ) has no matching (; remove it".into())),
            Some(found) => Err(parser.wrong(format!("unexpected {found:?}; use + - * or /"))),
        }
    }
}

/// A recursive-descent parser: a sum of products of signed atoms.
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
    fn take(&mut self, target: &[char]) -> Option<char> {
        let found = self.peek().filter(|c| target.contains(c))?;
        self.at += 1;
        Some(found)
    }

    fn wrong(&self, problem: String) -> FormulaError {
        FormulaError { position: self.at + 1, problem }
    }

    fn expect(&mut self, target: char) -> Result<(), FormulaError> {
        match self.take(&[target]) {
            Some(_) => Ok(()),
            None => Err(self.wrong(format!("{target:?} is missing here"))),
        }
    }

    fn deeper(&mut self) -> Result<(), FormulaError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format!("nested more than {DEPTH_MAX} levels deep; simplify the formula")));
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
            Some(found) => Err(self.wrong(format!("unexpected {found:?}; {WANTED}"))),
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
            Err(_) => Err(FormulaError { position: start + 1, problem: format!("{word:?} is not a number") }),
        }
    }

    fn named(&mut self) -> Result<(), FormulaError> {
        let start = self.at;
        let word = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        let variable = match word.as_str() {
            "min" => return self.of_two(Step::Min),
            "max" => return self.of_two(Step::Max),
            "base_priority" => Variable::Base,
            "age_minutes" => Variable::AgeMinutes,
            "simple" => Variable::Simple,
            "required_tags" => Variable::Requires,
            "preferred_tags" => Variable::Prefers,
            _ => {
                let problem = format!(
                    "unknown variable {word:?}; use base_priority, age_minutes, simple, required_tags, \
                     preferred_tags, min(a, b) or max(a, b)"
                );
                return Err(FormulaError { position: start + 1, problem });
            }
        };
        self.steps.push(Step::Variable(variable));
        Ok(())
    }

    /// Parses `(a, b, …)` after `min` or `max`, with two or more arguments.
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
        let inputs =
            PriorityInputs { base_priority: 100, age_ms: 150_000, required_tags: 2, preferred_tags: 3 };
        formula.parse::<Formula>().unwrap().value(&inputs)
    }

    #[test]
    fn operator_precedence_is_sign_product_sum() {
        assert_eq!(value("2 + 3 * 4"), 14);
        assert_eq!(value("(2 + 3) * 4"), 20);
        assert_eq!(value("10 - 4 - 3"), 3);
        assert_eq!(value("100 / 5 / 2"), 10);
        assert_eq!(value("-2 * -3"), 6);
        assert_eq!(value("2 - -3"), 5);
        assert_eq!(value("min(5, 3) + max(1, 2, 9)"), 12);
        assert_eq!(value("base_priority + age_minutes + simple + required_tags * 10 + preferred_tags"), 125);
    }

    #[test]
    fn the_default_formula_adds_base_age_and_simplicity() {
        let formula: Formula = PoolSettings::default().priority_formula.parse().unwrap();
        let simple = PriorityInputs { base_priority: 100, age_ms: 0, required_tags: 0, preferred_tags: 0 };
        assert_eq!(formula.value(&simple), 150);
        assert_eq!(formula.value(&PriorityInputs { age_ms: 59_999, ..simple }), 150);
        assert_eq!(formula.value(&PriorityInputs { age_ms: 60_000, ..simple }), 151);
        assert_eq!(formula.value(&PriorityInputs { required_tags: 1, ..simple }), 100);
        assert_eq!(formula.value(&PriorityInputs { preferred_tags: 1, ..simple }), 100);
    }

    #[test]
    fn division_by_zero_is_zero_or_saturates() {
        assert_eq!(value("0 / 0"), 0);
        assert_eq!(value("1 / 0"), i64::MAX);
        assert_eq!(value("-1 / 0"), i64::MIN);
    }

    #[test]
    fn an_error_has_the_right_position() {
        let cases = [
            ("", 1, "missing"),
            ("simple +", 9, "missing"),
            ("simple + ages", 10, "unknown variable \"ages\""),
            ("simple simple", 8, "unexpected"),
            ("(simple", 8, "')' is missing"),
            ("simple)", 7, "no matching ("),
            ("1.2.3", 1, "not a number"),
            ("min(1)", 6, "',' is missing"),
            ("min 1", 5, "'(' is missing"),
            ("2 ^ 3", 3, "unexpected '^'"),
            ("2 * ü", 5, "unexpected 'ü'"),
        ];
        for (text, position, expected) in cases {
            let error = text.parse::<Formula>().unwrap_err();
            assert_eq!(error.position, position, "{text}: {error}");
            assert!(error.problem.contains(expected), "{text}: {error}");
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
        fn no_text_makes_it_panic(text in ".{0,60}", inputs in (any::<i32>(), any::<i64>())) {
            if let Ok(formula) = text.parse::<Formula>() {
                formula.value(&PriorityInputs { base_priority: inputs.0, age_ms: inputs.1, required_tags: 1, preferred_tags: 1 });
            }
        }

        #[test]
        fn similar_texts_do_not_make_it_panic(text in "[0-9a-z_+*/(),. -]{0,40}") {
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
