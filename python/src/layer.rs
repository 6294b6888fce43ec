//! The last layer's arrays, used without a copy.

use capo_plugin::LastLayer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::array::{Large, Slot};
use crate::fields::Fields;

/// Features and logits of the last layer.
pub(crate) struct Layer {
    hidden: Large<f32>,
    topk_ids: Large<u32>,
    topk_logits: Large<f32>,
    logsumexp: Large<f32>,
    action_logits: Large<f32>,
    vocab_size: usize,
}

impl Layer {
    pub(crate) fn view(&self) -> LastLayer<'_> {
        LastLayer::new(
            self.hidden.tensor(),
            self.topk_ids.tensor(),
            self.topk_logits.tensor(),
            self.logsumexp.tensor(),
            self.action_logits.tensor(),
            self.vocab_size,
        )
    }

    /// Reads the fields for the extents B and T.
    pub(crate) fn read(fields: &Fields<'_, '_>, [b, t]: [i64; 2], stream: u64) -> PyResult<Self> {
        if !fields.has("vocab_size")? {
            let sentence =
                "`vocab_size` is missing (it is the number of tokens that the model knows)";
            return Err(PyTypeError::new_err(sentence));
        }
        let vocab_size = fields.number("vocab_size", 0)?;
        let topk_ids = fields.large_ids("topk_ids", &[b, t, -1], stream)?;
        let k = topk_ids.shape()[2];
        Ok(Self {
            hidden: fields.large("hidden", &[b, t, -1], stream)?,
            topk_logits: fields.large("topk_logits", &[b, t, k], stream)?,
            topk_ids,
            logsumexp: fields.large("logsumexp", &[b, t], stream)?,
            action_logits: fields.large("action_logits", &[b, t], stream)?,
            vocab_size,
        })
    }

    /// Name, place and address of each array.
    pub(crate) fn slots(&self) -> [(&'static str, Slot); 5] {
        [
            ("hidden", self.hidden.slot()),
            ("topk_ids", self.topk_ids.slot()),
            ("topk_logits", self.topk_logits.slot()),
            ("logsumexp", self.logsumexp.slot()),
            ("action_logits", self.action_logits.slot()),
        ]
    }
}
