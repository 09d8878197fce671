//! Messages that are longer than a datagram.

use super::drops::Dropped;
use super::seal::BODY_MAX;

/// Which message (4), which part (1), of how many (1).
const HEAD: usize = 6;
const PART_MAX: usize = BODY_MAX - HEAD;

/// How many parts a message may have.
const PARTS_MAX: usize = 64;

/// The longest message.
pub(super) const MESSAGE_MAX: usize = PARTS_MAX * PART_MAX;

/// Cuts a message into the bodies of datagrams; `None` if it is too long.
pub(super) fn cut(number: u32, message: &[u8]) -> Option<Vec<Vec<u8>>> {
    if message.len() > MESSAGE_MAX {
        return None;
    }
    let count = message.len().div_ceil(PART_MAX).max(1);
    let body = |at: usize| {
        let part = &message[at * PART_MAX..message.len().min((at + 1) * PART_MAX)];
        let mut body = Vec::with_capacity(HEAD + part.len());
        body.extend_from_slice(&number.to_be_bytes());
        body.extend_from_slice(&[at as u8, count as u8]);
        body.extend_from_slice(part);
        body
    };
    Some((0..count).map(body).collect())
}

/// The parts of one sender's newest message, as far as they are there.
#[derive(Default)]
pub(super) struct Parts {
    number: Option<u32>,
    parts: Vec<Option<Vec<u8>>>,
}

impl Parts {
    /// Adds a part. The message, if it is whole now. A newer message takes the place of one that is not whole yet.
    pub(super) fn add(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, Dropped> {
        let (head, part) = body.split_at_checked(HEAD).ok_or(Dropped::Malformed)?;
        let number = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let (at, count) = (usize::from(head[4]), usize::from(head[5]));
        if at >= count || count > PARTS_MAX {
            return Err(Dropped::Malformed);
        }
        if count == 1 {
            return Ok(Some(part.to_vec()));
        }
        if self.number != Some(number) || self.parts.len() != count {
            *self = Parts { number: Some(number), parts: vec![None; count] };
        }
        self.parts[at] = Some(part.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let whole = std::mem::take(self);
        Ok(Some(whole.parts.into_iter().flatten().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_whole_whatever_the_order_of_its_parts() {
        for length in [0, 1, PART_MAX, PART_MAX + 1, 65_507, MESSAGE_MAX] {
            let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut bodies = cut(7, &message).unwrap();
            bodies.reverse();
            let mut parts = Parts::default();
            let last = bodies.pop().unwrap();
            assert!(bodies.iter().all(|body| parts.add(body) == Ok(None)));
            assert_eq!(parts.add(&last), Ok(Some(message)));
        }
        assert_eq!(cut(7, &vec![0; MESSAGE_MAX + 1]), None);
    }

    #[test]
    fn parts_of_different_messages_are_not_mixed() {
        let (first, second) = (vec![1; 2 * PART_MAX], vec![2; 2 * PART_MAX]);
        let (a, b) = (cut(1, &first).unwrap(), cut(2, &second).unwrap());
        let mut parts = Parts::default();
        assert_eq!(parts.add(&a[0]), Ok(None));
        assert_eq!(parts.add(&b[0]), Ok(None));
        assert_eq!(parts.add(&b[1]), Ok(Some(second)));
        assert_eq!(parts.add(&a[1]), Ok(None));
    }

    #[test]
    fn parts_that_make_no_sense_are_dropped() {
        let mut parts = Parts::default();
        for body in [&[0; 3][..], &[0, 0, 0, 1, 0, 0], &[0, 0, 0, 1, 2, 2], &[0, 0, 0, 1, 0, 65]] {
            assert_eq!(parts.add(body), Err(Dropped::Malformed));
        }
    }
}
