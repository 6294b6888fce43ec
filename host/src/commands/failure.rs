//! How a command fails.

/// A failure, by what the user can do about it.
pub(super) enum Failure {
    /// Exit code 2: settings, files or plugins are wrong, and nothing has been done.
    Input(anyhow::Error),
    /// Exit code 1: the run broke on the way.
    Run(anyhow::Error),
}
