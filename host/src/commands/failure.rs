//! The failures of a command.

/// A failure, classified by what the user can do about it.
pub(super) enum Failure {
    /// Exit code 2: settings, files or plugins are wrong, and no work has been done.
    Input(anyhow::Error),
    /// Exit code 1: the run failed after it began.
    Run(anyhow::Error),
}
