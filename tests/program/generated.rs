//! Tests of the completion scripts and of the man pages.

use crate::support::{Outcome, Scratch, command, finish};

fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let toy = "about = \"x\"\nbinary = \"toy-engine\"\n[devices.cuda.needs]\ndriver = \"nvidia\"\n\
               [presets.default]\nabout = \"x\"\n[presets.fast]\nabout = \"x\"\n[presets.fair]\nabout = \"x\"\n";
    scratch.write_tree(&[("toy", toy), ("tower", "about = \"x\"\nbinary = \"tower\"\n")]);
    scratch
}

fn orchestrate(scratch: &Scratch, words: &[&str]) -> Outcome {
    finish(scratch.orchestrate_without_checkout().args(words)).exits_with(0)
}

/// The replacements that bash offers for the end of a line. Bash splits words at `:` and `=` too.
fn completed(script: &std::path::Path, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split([' ', ':', '=']).collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let call = "source \"$1\"; COMP_LINE=$2; COMP_POINT=${#2}; \
                function=$(complete -p orchestrate | sed 's/.*-F \\([^ ]*\\).*/\\1/'); \
                \"$function\" orchestrate \"$3\" \"$4\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = command("bash");
    bash.args(["--norc", "-c", call, "bash"]).arg(script).args([line, last, before]);
    bash.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let outcome = finish(&mut bash).exits_with(0);
    assert_eq!(outcome.stderr, "", "{outcome:?}");
    outcome.stdout.lines().filter(|line| !line.is_empty()).map(String::from).collect()
}

#[test]
fn bash_completes_subcommands_options_and_known_names() {
    let scratch = tree();
    let script = scratch.join("script");
    std::fs::write(&script, orchestrate(&scratch, &["completions", "bash"]).stdout).unwrap();
    for (line, expected) in [
        ("orchestrate -e t", &["tower", "toy"] as &[&str]),
        ("orchestrate -e toy:", &["fair", "fast"]),
        ("orchestrate -e tower,to", &["tower,tower", "tower,toy"]),
        ("orchestrate -e tower,toy:fas", &["fast"]),
        ("orchestrate --reference tow", &["tower"]),
        ("orchestrate -s dec", &["decode"]),
        ("orchestrate run -s load,pre", &["load,prefill"]),
        ("orchestrate --device c", &["cpu", "cuda"]),
        ("orchestrate setup to", &["tower", "toy"]),
        ("orchestrate model synth tiny-q", &["tiny-qwen2", "tiny-qwen3"]),
        ("orchestrate model synth gpt2 --dtype q8", &["q8_0"]),
        ("orchestrate --order ", &["interleaved", "sequential"]),
        ("orchestrate cal", &["calibrate"]),
        ("orchestrate model pu", &["pull"]),
        ("orchestrate setup --rem", &["--remove"]),
        // No path is offered here: bash then completes file names itself.
        ("orchestrate -e ./", &[]),
        // Only this program itself starts the hidden subcommands.
        ("orchestrate null", &[]),
    ] {
        assert_eq!(completed(&script, line), expected, "{line}");
    }
}

#[test]
fn zsh_and_fish_get_scripts_with_the_known_names() {
    let scratch = tree();
    let zsh = orchestrate(&scratch, &["completions", "zsh"]).stdout;
    assert!(
        zsh.starts_with("#compdef orchestrate\n") && zsh.contains("(tower toy toy\\:fair toy\\:fast)"),
        "{zsh}"
    );
    let fish = orchestrate(&scratch, &["completions", "fish"]).stdout;
    assert!(fish.contains("complete -c orchestrate") && fish.contains("toy:fast"), "{fish}");
    assert!(!zsh.contains("null-engine") && !fish.contains("null-engine"));
    let refused = finish(scratch.orchestrate_without_checkout().args(["completions", "tcsh"])).exits_with(2);
    refused.assert_stderr(&["hint: choose one of `bash`, `zsh`, `fish`"]);
}

#[test]
fn every_subcommand_has_a_man_page_that_man_can_show() {
    let scratch = tree();
    let printed = orchestrate(&scratch, &["man"]).stdout;
    orchestrate(&scratch, &["man", "--out", "pages"]);
    let page = |name: &str| std::fs::read_to_string(scratch.join(&format!("pages/{name}.1"))).unwrap();
    assert_eq!(printed, page("orchestrate"));
    let help = orchestrate(&scratch, &["--help"]).stdout;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    // The continuation of a long description is indented further.
    let entries = list.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let subcommands = entries.filter(|entry| !entry.starts_with(' ')).filter_map(|it| it.split(' ').next());
    for subcommand in subcommands.filter(|it| *it != "help") {
        assert!(page(&format!("orchestrate-{subcommand}")).contains(".SH SYNOPSIS"), "{subcommand}");
    }
    assert!(page("orchestrate-model-pull").contains("REPO[@REV]"));
    assert!(!scratch.join("pages/orchestrate-null-engine.1").exists());
    let groff = ["-man", "-Tutf8", "-ww", "pages/orchestrate.1"];
    let is_installed =
        std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|it| it.join("groff").is_file());
    let text = match is_installed {
        true => finish(scratch.command("groff").args(groff).current_dir(&scratch.path)).exits_with(0).stdout,
        false => printed,
    };
    assert!(text.contains("NAME") && text.contains("Measure engines") && text.contains("130"), "{text}");
}
