//! Seeded simulation: the code that ships, over a disk that loses, reorders and refuses.
//!
//! `SEED=<n>` replays one seed, `SIM_SEEDS=<n>` sets how many a world runs, `SIM_FAILURES=<n>`
//! after how many red seeds it stops. A failure prints the command that replays it.

#![allow(clippy::unwrap_used, reason = "a simulation that cannot go on has failed")]

mod chaos;
mod disk;
mod exact;
mod fair;
mod ledger;
mod log_damage;
mod log_world;
mod model;
mod overtaken;
mod stored;
mod workload;
mod world;

/// Runs `world` for the seeds asked for, or for `default` of them.
fn for_seeds(test: &str, default: u64, world: impl Fn(u64) -> Result<u64, String>) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(default),
    };
    let mut failures = Vec::new();
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| world(seed));
        let outcome = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        });
        if let Err(why) = outcome {
            eprintln!("seed {seed}: {why}\n  replay: SEED={seed} cargo test --test sim {test}");
            failures.push(seed);
            if failures.len() as u64 >= number("SIM_FAILURES").unwrap_or(5) {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{test} failed for seeds {failures:?}");
}
