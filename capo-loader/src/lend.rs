//! Gives components access to data that a batch does not hold.

use capo_plugin::{Connection, Extension, Lending, Sink};

/// A sink that also gives access to a rollout's context, and connects ranks.
pub struct Lender<'a> {
    /// The sink for reports.
    pub sink: &'a mut dyn Sink,
    /// The rollout's context; `None` if it is not known.
    pub context: Option<Lending<'a>>,
    /// The connection between the ranks; `None` for a single rank.
    pub ranks: Option<Connection<'a>>,
}

impl Sink for Lender<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(self.sink)
    }

    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        let lent = self.context.as_ref().and_then(|context| context.extension(id));
        match lent.or_else(|| self.ranks.as_ref().and_then(|ranks| ranks.extension(id))) {
            Some(lent) => Some(lent),
            None => self.sink.extension(id),
        }
    }
}
