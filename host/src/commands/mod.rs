//! The command line, with one file per subcommand.

mod answers;
mod args;
mod batches;
mod card;
mod compare_masks;
mod diagnose;
#[cfg(feature = "download")]
mod download;
mod episodes;
mod eval;
mod export;
mod failure;
mod find_rate;
mod generate;
mod inference_args;
mod new_plugin;
mod output;
mod own_run;
mod plugins;
mod replay;
mod report;
mod runs;
mod score;
mod shared_args;
mod sweep;
mod train;
mod vendor;

use std::io::{self, ErrorKind};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use capo_loader::watchdog::End;
use capo_plugin::plain;
use capo_system::memory;
use clap::Parser;
use clap::error::ErrorKind as CommandLine;

use args::{Cli, Command, SftArgs};
use failure::Failure;
use host_model::device;

use crate::check;
use crate::sft::Sft;
use crate::terminal::{self, sentence};

/// Runs the command line. The exit code is 0, 2 for bad input, or 1 for a run that failed or whose
/// output could not be written.
pub fn main(started: Instant) -> i32 {
    let _end = End::awaited();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_run(&error),
    };
    if let Err(error) = start_threads() {
        terminal::error(&sentence(&error, cli.verbose));
        return 2;
    }
    let outcome = match &cli.command {
        Command::Train(args) => train::run(args, started),
        Command::FindRate(args) => find_rate::run(args, started),
        Command::Eval(args) => eval::run(args),
        Command::Sft(args) => run_sft(args),
        Command::Generate(args) if args.acts() => episodes::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Score(args) => score::run(args),
        Command::Export(args) => export::run(args),
        #[cfg(feature = "download")]
        Command::Download(args) => download::run(args),
        #[cfg(not(feature = "download"))]
        Command::Download(_) => Err(Failure::Input(host_data::features::missing(
            "downloads",
            "download",
        ))),
        Command::Replay(args) => replay::run(args).map_err(Failure::Input),
        Command::CompareMasks(args) => compare_masks::run(args).map_err(Failure::Input),
        Command::Runs(args) => runs::run(args).map_err(Failure::Input),
        Command::Diagnose(args) => diagnose::run(args).map_err(Failure::Input),
        Command::Report(args) => report::run(args).map_err(Failure::Input),
        Command::Plugins(args) => plugins::run(args, cli.verbose).map_err(Failure::Input),
        Command::Check(args) => match check::run(args, cli.verbose) {
            Ok(true) => Ok(()),
            Ok(false) => return 1,
            Err(error) => Err(Failure::Input(error)),
        },
        Command::NewPlugin(args) => new_plugin::run(args).map_err(Failure::Input),
        Command::ApplyChatTemplate => host_data::apply_chat_template().map_err(Failure::Run),
    };
    let (error, code) = match outcome.and_then(|()| terminal::check().map_err(Failure::Run)) {
        Ok(()) => return 0,
        Err(Failure::Input(error)) => (error, 2),
        Err(Failure::Run(error)) => (error, 1),
    };
    // Too little memory of a device is no mistake in the settings, and a full disk is none.
    let code = if device::is_out_of_memory(&error) || is_disk_full(&error) {
        1
    } else {
        code
    };
    terminal::error(&sentence(&device::explained(error), cli.verbose));
    code
}

/// True if a file could not be written because the disk, or a limit on the size of files, leaves no
/// room for it.
fn is_disk_full(error: &anyhow::Error) -> bool {
    const FULL: [ErrorKind; 3] = [
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::FileTooLarge,
    ];
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| FULL.contains(&cause.kind()))
}

/// Starts the compute threads early, so that a failure can still be reported.
fn start_threads() -> Result<()> {
    const MOST: usize = 4096;
    for name in ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
        let said = std::env::var(name)
            .ok()
            .and_then(|said| said.parse::<usize>().ok());
        if let Some(threads) = said.filter(|threads| *threads > MOST) {
            bail!(
                "`{name}` is {threads} (it must be at most {MOST}; more threads than cores are of \
                 no use)"
            );
        }
    }
    // Threads without room for their stacks panic where no error can be reported.
    const LEAST: u64 = 512 << 20;
    if let Some(addresses) = memory::addresses().filter(|addresses| *addresses < LEAST) {
        bail!(
            "`ulimit -v` leaves {} of addresses, and {} is the least that works (allow the \
             process more)",
            memory::text(addresses.into()),
            memory::text(LEAST.into())
        );
    }
    rayon::ThreadPoolBuilder::new().build_global().context(
        "the threads that compute cannot be started (set `RAYON_NUM_THREADS` to fewer, or allow \
         the process more memory or threads)",
    )
}

/// Prints the help or the version, or the error in the command line.
fn not_run(error: &clap::Error) -> i32 {
    if error.use_stderr() {
        terminal::note(plain::argument(&error.to_string()).trim_end());
        if error.kind() == CommandLine::InvalidSubcommand && error.to_string().contains("'sweep'") {
            terminal::note(
                "\n  tip: a sweep of thresholds over recorded batches is `host replay --sweep`",
            );
        }
        return 2;
    }
    terminal::heard(error.print());
    match terminal::check() {
        Ok(()) => 0,
        Err(error) => {
            terminal::error(&sentence(&error, false));
            1
        }
    }
}

fn run_sft(args: &SftArgs) -> Result<(), Failure> {
    let sft = Sft::open(
        args.config.as_deref(),
        &args.set,
        args.device.as_deref(),
        &args.output_dir,
    );
    let mut sft = sft.map_err(Failure::Input)?;
    let stop = train::watch_interrupts("step", || {
        "stopped at once (the same command goes on from the newest checkpoint, or begins again)"
            .to_owned()
    })
    .map_err(Failure::Run)?;
    sft.run(terminal::say, &stop).map_err(Failure::Run)
}
