//! `host export`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use capo_loader::files;
use capo_loader::folders::{self, NewFolder};

use super::Failure;
use super::args::ExportArgs;
use crate::data::Tokenizer;
use crate::model::{ModelFiles, Policy, device, embedded};
use crate::report::terminal::{grouped, say};

/// Writes a model as a Hugging Face folder, an adapter's product added to its base.
pub(super) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let open = || -> Result<_> {
        folders::split(&args.out).context("`--out` cannot be used")?;
        ensure!(
            args.out.symlink_metadata().is_err(),
            "`{}` exists already (choose another `--out`)",
            args.out.display()
        );
        let files = embedded::model_files(&args.model)?;
        let policy = Policy::load(&files, &device::open(device::CPU, device::Dtype::F32)?)?;
        Ok((files, policy))
    };
    let (files, policy) = open().map_err(Failure::Input)?;
    let count = grouped(policy.weights().element_count() as u64);
    let merged = if policy.adapter().is_some() { ", the adapter merged" } else { "" };
    policy.merged().and_then(|policy| write(&policy, &files, &args.out)).map_err(Failure::Run)?;
    say(&format!("{count} parameters{merged}: `{}`", args.out.display()));
    Ok(())
}

/// The folder appears whole.
fn write(policy: &Policy, from: &ModelFiles, out: &Path) -> Result<()> {
    let (parent, name) = folders::split(out)?;
    let cannot = || format!("cannot write `{}`", out.display());
    let new = NewFolder::in_folder(&parent).with_context(cannot)?;
    policy.save(new.path())?;
    for file in Tokenizer::FILES.into_iter().filter(|name| from.contains(name)) {
        files::write_atomic(&new.path().join(file), &from.read(file)?)?;
    }
    new.appear_as(&name).with_context(cannot)
}
