//! Lending to components what a batch does not hold.

use capo_plugin::{Extension, Lending, Sink};

/// A sink that lends a rollout's context as well.
pub struct Lender<'a> {
    /// Where reports go.
    pub sink: &'a mut dyn Sink,
    /// What is lent, where it is known.
    pub context: Option<Lending<'a>>,
}

impl Sink for Lender<'_> {
    fn record(&mut self, component: &str, name: &str, value: f64) {
        self.sink.record(component, name, value);
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        self.sink.record_tokens(component, name, values);
    }

    fn warn(&mut self, component: &str, text: &str) {
        self.sink.warn(component, text);
    }

    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        match self.context.as_ref().and_then(|context| context.extension(id)) {
            Some(lent) => Some(lent),
            None => self.sink.extension(id),
        }
    }

    fn enter(&mut self, component: &str, method: &'static str) {
        self.sink.enter(component, method);
    }

    fn leave(&mut self) {
        self.sink.leave();
    }

    fn objection(&mut self) -> Option<String> {
        self.sink.objection()
    }
}
