//! Groups of weights whose steps can be scaled separately: the embedding, each block, the last
//! layer.

use std::collections::BTreeMap;

use super::params::Params;
use super::shapes::EMBEDDING;

/// Weights that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// `embedding`, `block.0`, ..., `last_layer`.
    pub name: String,
    /// Number of scalar weights.
    pub parameters: u64,
    /// Names of the tensors, in order.
    pub tensors: Vec<String>,
}

/// All weights by group, in the order of the forward pass. A head that is tied to the embedding
/// counts as the embedding.
pub fn groups(params: &Params) -> Vec<Group> {
    let mut groups = BTreeMap::new();
    for (tensor, var) in params.iter() {
        let (place, name) = place(tensor);
        let group = groups.entry(place).or_insert_with(|| Group {
            name,
            parameters: 0,
            tensors: Vec::new(),
        });
        group.parameters += var.elem_count() as u64;
        group.tensors.push(tensor.to_owned());
    }
    groups.into_values().collect()
}

/// Position and name of the group that holds `tensor`.
fn place(tensor: &str) -> (usize, String) {
    let block = tensor
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    match block {
        _ if tensor == EMBEDDING => (0, "embedding".to_owned()),
        Some(block) => (1 + block, format!("block.{block}")),
        None => (usize::MAX, "last_layer".to_owned()),
    }
}
