//! Fragmentation of messages that are longer than a datagram.

use super::cipher::BODY_MAX;
use super::drops::DropReason;

/// Header: message number (4), fragment index (1), fragment count (1).
const HEADER: usize = 6;
const FRAGMENT_MAX: usize = BODY_MAX - HEADER;

/// Maximum number of fragments of a message.
const FRAGMENTS_MAX: usize = 64;

/// Maximum message length.
pub(super) const MESSAGE_MAX: usize = FRAGMENTS_MAX * FRAGMENT_MAX;

/// Split a message into datagram bodies; `None` if it is too long.
pub(super) fn split(number: u32, message: &[u8]) -> Option<Vec<Vec<u8>>> {
    if message.len() > MESSAGE_MAX {
        return None;
    }
    let count = message.len().div_ceil(FRAGMENT_MAX).max(1);
    let body = |at: usize| {
        let fragment = &message[at * FRAGMENT_MAX..message.len().min((at + 1) * FRAGMENT_MAX)];
        let mut body = Vec::with_capacity(HEADER + fragment.len());
        body.extend_from_slice(&number.to_be_bytes());
        body.extend_from_slice(&[at as u8, count as u8]);
        body.extend_from_slice(fragment);
        body
    };
    Some((0..count).map(body).collect())
}

/// Received fragments of the newest message of one sender.
#[derive(Default)]
pub(super) struct MessageAssembler {
    number: Option<u32>,
    fragments: Vec<Option<Vec<u8>>>,
}

impl MessageAssembler {
    /// Add a fragment and return the message once it is complete. A newer message replaces an incomplete one.
    pub(super) fn add(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
        let (header, fragment) = body.split_at_checked(HEADER).ok_or(DropReason::Malformed)?;
        let number = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let (at, count) = (usize::from(header[4]), usize::from(header[5]));
        if at >= count || count > FRAGMENTS_MAX {
            return Err(DropReason::Malformed);
        }
        if count == 1 {
            return Ok(Some(fragment.to_vec()));
        }
        if self.number != Some(number) || self.fragments.len() != count {
            *self = MessageAssembler { number: Some(number), fragments: vec![None; count] };
        }
        self.fragments[at] = Some(fragment.to_vec());
        if self.fragments.iter().any(Option::is_none) {
            return Ok(None);
        }
        let complete = std::mem::take(self);
        Ok(Some(complete.fragments.into_iter().flatten().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_reassembled_in_any_order_of_its_fragments() {
        for length in [0, 1, FRAGMENT_MAX, FRAGMENT_MAX + 1, 65_507, MESSAGE_MAX] {
            let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut bodies = split(7, &message).unwrap();
            bodies.reverse();
            let mut fragments = MessageAssembler::default();
            let last = bodies.pop().unwrap();
            assert!(bodies.iter().all(|body| fragments.add(body) == Ok(None)));
            assert_eq!(fragments.add(&last), Ok(Some(message)));
        }
        assert_eq!(split(7, &vec![0; MESSAGE_MAX + 1]), None);
    }

    #[test]
    fn fragments_of_different_messages_are_not_mixed() {
        let (first, second) = (vec![1; 2 * FRAGMENT_MAX], vec![2; 2 * FRAGMENT_MAX]);
        let (a, b) = (split(1, &first).unwrap(), split(2, &second).unwrap());
        let mut fragments = MessageAssembler::default();
        assert_eq!(fragments.add(&a[0]), Ok(None));
        assert_eq!(fragments.add(&b[0]), Ok(None));
        assert_eq!(fragments.add(&b[1]), Ok(Some(second)));
        assert_eq!(fragments.add(&a[1]), Ok(None));
    }

    #[test]
    fn invalid_fragments_are_dropped() {
        let mut fragments = MessageAssembler::default();
        for body in [&[0; 3][..], &[0, 0, 0, 1, 0, 0], &[0, 0, 0, 1, 2, 2], &[0, 0, 0, 1, 0, 65]] {
            assert_eq!(fragments.add(body), Err(DropReason::Malformed));
        }
    }
}
