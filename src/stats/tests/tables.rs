//! The tables of `scripts/simulate`: all kinds and sizes of noise, many experiments.

use super::coverage::coverage;
use super::estimators;
use super::false_verdicts::{FloorSource, any_false_verdict, false_between_runs, verdicts, verdicts_under};
use super::noise::{ALL, Machine, Noise};
use crate::interval::{CONFIDENCE, Design};
use crate::stopping::Rule;

/// Deviations of a block, as multiples of the target. At the smallest, five blocks are almost always enough;
/// at the largest, twenty almost never are.
const SCALES: [f64; 6] = [0.3, 0.8, 1.2, 1.7, 2.5, 5.0];

/// The claimed maximum of false verdicts in a thousand.
const MAX_FALSE_VERDICTS: f64 = 1000.0 * (1.0 - CONFIDENCE);

#[test]
fn a_table_shows_the_coverage_of_intervals_by_noise() {
    println!(
        "\ncoverage of intervals that claim 95 %, by the deviation of a block as a multiple of the target\n"
    );
    println!("{:<24} {:>9}  {}", "noise", "interval", SCALES.map(|scale| format!("{scale:>6}")).join(" "));
    for noise in ALL {
        for (name, design) in [("corrected", Design::Interim), ("plain t", Design::Fixed)] {
            let shares = SCALES.map(|scale| coverage(noise, scale, design, 20_000));
            let cells = shares.map(|share| format!("{:>6.1}", 100.0 * share)).join(" ");
            println!("{:<24} {name:>9}  {cells}", format!("{noise:?}"));
            if noise == Noise::Normal && design == Design::Interim {
                assert!(shares.iter().all(|share| (0.948..0.968).contains(share)), "{shares:?}");
            }
        }
    }
}

#[test]
fn a_table_shows_the_false_verdicts_and_the_found_differences_by_noise() {
    println!(
        "\nfalse verdicts (faster or slower) in 1000 comparisons of an engine with itself, the worst of all sizes of noise;\n\
         claimed: at most {MAX_FALSE_VERDICTS:.0}\n"
    );
    println!("{:<24} {:>9} {:>9} {:>12}", "noise", "no floor", "twin", "calibration");
    for noise in ALL {
        let worst = [FloorSource::Nothing, FloorSource::Twin, FloorSource::Calibration].map(|source| {
            let false_shares =
                SCALES.map(|scale| verdicts(noise, scale, source, 0.0, 1_000)[..2].iter().sum::<f64>());
            1000.0 * false_shares.into_iter().fold(0.0, f64::max)
        });
        println!("{:<24} {:>9.0} {:>9.0} {:>12.0}", format!("{noise:?}"), worst[0], worst[1], worst[2]);
    }
    println!(
        "\nverdicts `slower`, `same` and `inconclusive` in 1000 comparisons with an engine that is 5 % slower (noise floor of the twin)\n"
    );
    println!("{:<24} {}", "noise", SCALES.map(|scale| format!("{scale:>15}")).join(" "));
    for noise in ALL {
        let cells = SCALES.map(|scale| {
            let [_, slower, same, inconclusive] =
                verdicts(noise, scale, FloorSource::Twin, 0.95f64.ln(), 1_000);
            format!(
                "{:>15}",
                [slower, same, inconclusive].map(|share| format!("{:.0}", 1000.0 * share)).join(" ")
            )
        });
        println!("{:<24} {}", format!("{noise:?}"), cells.join(" "));
    }
    println!(
        "\nverdicts `same` in 1000 comparisons of an engine with itself on normal noise, and the mean number of blocks, by target\n"
    );
    let deviations = [0.0025, 0.005, 0.01, 0.015, 0.02, 0.03];
    println!(
        "{:<24} {}",
        "deviation of a block",
        deviations.map(|it| format!("{:>10.2} %", 100.0 * it)).join(" ")
    );
    for target in [0.02, 0.015, 0.01] {
        let rule = Rule::with_target(target).unwrap();
        let cells = deviations.map(|deviation| {
            let machine = || Machine::new(Noise::Normal, deviation, 5);
            let [_, _, same, _] = verdicts_under(rule, machine(), FloorSource::Twin, 0.0, 1_000);
            let mut counting = machine();
            let blocks =
                (0..1_000).map(|_| counting.experiment(rule, Design::Interim, 0.0).1).sum::<usize>() as f64;
            format!("{:>12}", format!("{:.0}, {:.1}", 1000.0 * same, blocks / 1000.0))
        });
        println!("{:<24} {}", format!("{} %", 100.0 * target), cells.join(" "));
    }
}

#[test]
fn a_table_shows_the_experiments_with_a_false_verdict_by_noise() {
    println!(
        "\nexperiments with a false verdict, of 1000 with three equal engines in six workloads (claimed: at most {MAX_FALSE_VERDICTS:.0})\n"
    );
    let scales = [0.8, 1.7, 5.0];
    println!("{:<24} {}", "noise", scales.map(|scale| format!("{scale:>6}")).join(" "));
    for noise in ALL {
        let cells = scales.map(|scale| format!("{:>6.0}", 1000.0 * any_false_verdict(noise, scale, 1_000)));
        println!("{:<24} {}", format!("{noise:?}"), cells.join(" "));
    }
}

#[test]
fn a_table_shows_the_false_verdicts_between_two_runs() {
    println!(
        "\nfalse verdicts in 1000 comparisons of two runs of one program (claimed: at most {MAX_FALSE_VERDICTS:.0}),\n\
         by the deviation between runs, as a multiple of the deviation between the blocks of one run\n"
    );
    let ratios = [0.0, 0.25, 0.5, 1.0, 2.0];
    let found = ratios.map(|ratio| false_between_runs(ratio, 10_000));
    println!("{:<24} {}", "between runs", ratios.map(|ratio| format!("{ratio:>6}")).join(" "));
    for (index, name) in ["interval alone", "with the noise floor"].into_iter().enumerate() {
        let cells = found.map(|shares| format!("{:>6.0}", 1000.0 * shares[index]));
        println!("{name:<24} {}", cells.join(" "));
    }
}

#[test]
fn a_table_shows_the_errors_of_estimators() {
    println!(
        "\nerror (root mean square) of two estimators of a true ratio of 1.66, in 1000 runs of five blocks on a machine that\n\
         changes between two speeds, by the mean number of rounds at one speed\n"
    );
    let lengths = [0.5, 1.0, 3.0, 10.0, 30.0, 100.0];
    let errors = lengths.map(|length| estimators::errors(length, 1.66, 1_000));
    println!("{:<24} {}", "rounds at one speed", lengths.map(|length| format!("{length:>8}")).join(" "));
    for (index, name) in ["paired rounds", "medians"].into_iter().enumerate() {
        let cells = errors.map(|of_length| format!("{:>6.1} %", 100.0 * of_length[index]));
        println!("{name:<24} {}", cells.join(" "));
    }
}
