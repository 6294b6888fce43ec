//! A bounded list of texts with their scores; the oldest entries are removed first.

use std::collections::{HashMap, VecDeque};

use sha2::{Digest, Sha256};

/// Length of a text's key, in bytes.
const KEY: usize = 16;
/// Length of one entry in a saved list, in bytes.
const ENTRY: usize = KEY + size_of::<f32>();

/// Key of a text: the first bytes of its hash.
pub(super) type Key = [u8; KEY];

/// Scores of texts, in the order in which the texts first appeared.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    most: usize,
    order: VecDeque<Key>,
    scores: HashMap<Key, f32>,
}

impl Seen {
    /// An empty list of at most `most` texts.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            order: VecDeque::new(),
            scores: HashMap::new(),
        }
    }

    pub(super) fn key(prompt: &str, completion: &str) -> Key {
        let length = (prompt.len() as u64).to_le_bytes();
        let hash = Sha256::new()
            .chain_update(length)
            .chain_update(prompt)
            .chain_update(completion)
            .finalize();
        let mut key = Key::default();
        key.copy_from_slice(&hash[..KEY]);
        key
    }

    pub(super) fn get(&self, key: &Key) -> Option<f32> {
        self.scores.get(key).copied()
    }

    /// Adds the score of a text that is not in the list.
    pub(super) fn insert(&mut self, key: Key, score: f32) {
        if self.scores.insert(key, score).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.scores.remove(&oldest);
        }
    }

    /// The list as bytes for a checkpoint.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.order
            .iter()
            .flat_map(|key| key.iter().copied().chain(self.scores[key].to_le_bytes()))
            .collect()
    }

    /// Reads a list from a checkpoint; `None` if the bytes are not a list that fits into the limit
    /// of this one.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<Self> {
        let mut read = Self::new(self.most);
        let (entries, rest) = bytes.as_chunks::<ENTRY>();
        if !rest.is_empty() || entries.len() > self.most {
            return None;
        }
        for entry in entries {
            let (key, score) = entry.split_first_chunk::<KEY>()?;
            read.insert(*key, f32::from_le_bytes(*score.first_chunk()?));
        }
        (read.order.len() == entries.len()).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_the_oldest_and_survives_a_checkpoint() {
        let keys: Vec<Key> = ["a", "b", "c"]
            .iter()
            .map(|text| Seen::key("", text))
            .collect();
        let mut seen = Seen::new(2);
        for (key, score) in keys.iter().zip([1.0, 2.0, 3.0]) {
            seen.insert(*key, score);
        }
        assert_eq!(
            keys.iter().map(|key| seen.get(key)).collect::<Vec<_>>(),
            [None, Some(2.0), Some(3.0)]
        );
        let again = seen.read(&seen.to_bytes()).unwrap();
        assert_eq!((&again.order, &again.scores), (&seen.order, &seen.scores));
        assert!(seen.read(&seen.to_bytes()[1..]).is_none());
        assert!(Seen::new(1).read(&seen.to_bytes()).is_none());
        let twice = [seen.to_bytes(), seen.to_bytes()].concat();
        assert!(
            Seen::new(9).read(&twice).is_none(),
            "a list that has a text twice"
        );
    }

    #[test]
    fn tells_prompt_from_completion() {
        assert_ne!(Seen::key("ab", "c"), Seen::key("a", "bc"));
    }
}
