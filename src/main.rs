//! `lanemq`: reads the settings, serves until a signal.
//!
//! Exit codes: 0 after a clean drain, 1 after a fault while serving (the log failed, a thread
//! died), 2 when the broker did not start; the reason is one line on stderr.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use lanemq::config::{Config, LogFormat};
use lanemq::server::host::{EXIT_REFUSED, StartRefused};
use lanemq::server::serve::{self, Failure};
use lanemq::server::sys::StopSignals;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before any thread: each inherits that these signals are blocked.
    let signals = StopSignals::block();
    let config = Config::from_process();
    let served = start_logging(&config)
        .and_then(|()| signals.map_err(no_signals))
        .map_err(Failure::Refused)
        .and_then(|signals| {
            let settings = config.settings().map_err(Failure::Refused)?;
            serve::run(&settings, signals, announce)
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Refused(refused)) => {
            eprintln!("{refused}");
            ExitCode::from(EXIT_REFUSED)
        }
        Err(Failure::Fault(text)) => {
            tracing::error!("{text}");
            eprintln!("lanemq: {text}; start it again: what was answered is on the disk");
            // The executors still run; the process ends under them.
            std::process::exit(1);
        }
    }
}

/// Where it listens, with something to try.
fn announce(address: SocketAddr) {
    let host = address.to_string().replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
    let body = r#"{"items":[{"queue":"orders","partition":"customer-1","payload":{"n":1}}]}"#;
    println!("lanemq listens on http://{address}");
    println!("push:  curl -s http://{host}/api/v1/push -d '{body}'");
    println!("pop:   curl -s 'http://{host}/api/v1/pop/queue/orders?autoAck=true'");
}

fn no_signals(error: std::io::Error) -> StartRefused {
    StartRefused::new(
        format!("signals cannot be blocked ({error})"),
        "a look at the seccomp profile",
    )
}

/// To stderr; also what glommio says through the `log` crate, such as buffers it could not
/// register.
fn start_logging(config: &Config) -> Result<(), StartRefused> {
    let filter = EnvFilter::try_new(&config.log_level).map_err(|error| {
        StartRefused::new(format!("--log-level cannot be read ({error})"), "--log-level info")
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match config.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
