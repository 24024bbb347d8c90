use super::*;

const TOY: &str = "name = \"toy\"\nabout = \"a toy\"\nbinary = \"toy-engine\"\n";

#[test]
fn a_manifest_with_an_unknown_key_is_refused() {
    assert!(engine(TOY, |_| None).is_ok());
    assert!(engine(&format!("nmae = 1\n{TOY}"), |_| None).is_err());
}

#[test]
fn a_device_family_has_its_own_program_or_further_needs() {
    let own_program = format!("{TOY}[needs]\nos = [\"linux\"]\n[devices.cuda]\nbinary = \"toy-cuda\"\n");
    let toy = engine(&format!("{own_program}[devices.cuda.needs]\ndriver = \"nvidia\"\n"), |_| None).unwrap();
    for device in ["cuda", "cuda:1"] {
        let program = toy.program_for(&device.into());
        assert_eq!((program.binary, program.only_for), ("toy-cuda", Some("cuda")));
        assert!(program.needs().any(|it| it.driver.is_some()));
        assert!(program.needs().any(|it| !it.os.is_empty()), "the engine's needs hold on every device");
    }
    for device in ["cpu", "metal", "cudax", ""] {
        let program = toy.program_for(&device.into());
        assert_eq!((program.binary, program.only_for), ("toy-engine", None), "{device}");
        assert!(program.needs().all(|it| it.driver.is_none()));
    }
    let shared = engine(&format!("{TOY}[devices.cuda.needs]\ndriver = \"nvidia\"\n"), |_| None).unwrap();
    let program = shared.program_for(&"cuda:0".into());
    assert_eq!((program.binary, program.only_for), ("toy-engine", None));
    assert!(program.needs().any(|it| it.driver.is_some()));
}

#[test]
fn an_invalid_device_entry_is_refused() {
    let refused = |devices: &str| engine(&format!("{TOY}{devices}"), |_| None).unwrap_err().to_string();
    for (devices, message) in [
        (
            "[devices.\"cuda:1\"]\nbinary = \"x\"\n",
            "`devices.cuda:1`: expected a family of devices such as `cuda`",
        ),
        (
            "[devices.cuda.build]\npackage = \"toy\"\n",
            "`devices.cuda.build` without `devices.cuda.binary`: the program that it builds would never start",
        ),
        (
            "[devices.cuda]\nbinary = \"toy-engine\"\n",
            "`devices.cuda.binary`: `toy-engine` is the program of another device: expected another name",
        ),
        ("[devices.cuda.needs]\ndriver = \"other\"\n", "unknown variant `other`"),
    ] {
        assert!(refused(devices).contains(message), "{}", refused(devices));
    }
}

#[test]
fn an_environment_belongs_to_one_engine_or_is_shared_by_name() {
    let environment = |path: &str| {
        let other_settings = "python = \"3.11\"\ndownload_mb = 1\ninstalled_mb = 1\n";
        engine(&format!("{TOY}[environment]\nrequirements = \"{path}\"\n{other_settings}"), |path| {
            Some(path.into())
        })
    };
    let unshared = environment("requirements.txt").unwrap();
    assert_eq!(
        (unshared.environment_name(), unshared.requirements.as_deref()),
        ("toy", Some("requirements.txt"))
    );
    let with_packages_of_another = environment("../snake/requirements.txt").unwrap();
    assert_eq!(with_packages_of_another.environment_name(), "toy");
    let shared = environment("../environments/snake/requirements.txt").unwrap();
    assert_eq!(shared.environment_name(), "snake");
    for path in ["pins.txt", "../environments/requirements.txt", "../environments/a/b/requirements.txt", "/x"]
    {
        let error = environment(path).unwrap_err().to_string();
        assert!(error.contains("expected `requirements.txt`, `../ENGINE/requirements.txt` or"), "{error}");
    }
}

#[test]
fn build_files_are_part_of_an_environment_and_of_its_digest() {
    let environment = |other_settings: &str, setting: &'static str| {
        let start = "[environment]\npython = \"3.11\"\ndownload_mb = 1\ninstalled_mb = 1\n";
        let read = move |path: &str| (path != "missing.txt").then(|| format!("{path} {setting}"));
        engine(&format!("{TOY}{start}{other_settings}"), read)
    };
    let requirements = "requirements = \"requirements.txt\"\n";
    let built = format!("{requirements}build = [\"build-settings.txt\", \"x.cmake\"]\n");
    let folder = |other_settings: &str, setting| {
        environment(other_settings, setting).unwrap().environment().unwrap().unwrap()
    };
    assert_eq!(folder(requirements, ""), paths::environment("toy", "requirements.txt ").unwrap());
    let definition = "requirements.txt build-settings.txt x.cmake ";
    assert_eq!(folder(&built, ""), paths::environment("toy", definition).unwrap());
    assert_ne!(folder(&built, ""), folder(&built, "-O3"));
    let refused = |other_settings: &str| environment(other_settings, "").unwrap_err().to_string();
    assert_eq!(
        refused(&format!("{requirements}build = [\"missing.txt\"]\n")),
        "`environment.build`: no file `missing.txt`"
    );
    let of_another_engine =
        environment(&format!("{requirements}build = [\"../snake/x.cmake\"]\n"), "").unwrap();
    assert_eq!(of_another_engine.build_files, [("x.cmake".to_string(), "../snake/x.cmake ".to_string())]);
    for path in ["../x", "../../x", "/x", "a/x", "../../a/x", ".."] {
        let refusal = refused(&format!("{requirements}build = [\"{path}\"]\n"));
        let expected = format!("expected a file beside the manifest or `../ENGINE/FILE`, found `{path}`");
        assert_eq!(refusal, format!("`environment.build`: {expected}"));
    }
    let shared = "requirements = \"../environments/snake/requirements.txt\"\nbuild = [\"x\"]\n";
    assert!(refused(shared).contains("is shared"));
}

#[test]
fn a_preset_is_compared_only_with_another_known_preset() {
    let preset = |against: &str| {
        let against = format!("against = {{ preset = \"{against}\", effect = \"cost of speed\" }}\n");
        engine(&format!("{TOY}[presets.fast]\n{against}[presets.slow]\ndtype = \"f64\"\n"), |_| None)
    };
    assert!(preset("default").is_ok());
    assert_eq!(preset("slow").unwrap().manifest.presets["slow"].dtype.as_deref(), Some("f64"));
    for other in ["fast", "quick"] {
        let error = preset(other).unwrap_err().to_string();
        assert_eq!(error, format!("`presets.fast.against`: `{other}` is not another preset of this engine"));
    }
}

#[test]
fn a_suite_lists_each_preset_next_to_the_preset_that_it_is_compared_with() {
    let preset = |name: &str, other_settings: &str| {
        format!("[presets.{name}]\noptions = {{ {name} = 1 }}\n{other_settings}")
    };
    let row = |against: &str| {
        format!("suite = \"parts\"\nagainst = {{ preset = \"{against}\", effect = \"less\" }}\n")
    };
    let suite = "[suites.parts]\nabout = \"one at a time\"\nscenarios = [\"decode\"]\n";
    let toy = [
        TOY.to_string(),
        suite.to_string(),
        preset("whole", ""),
        preset("a", &row("whole")),
        preset("b", &row("default")),
        preset("c", &row("whole")),
        preset("d", "suite = \"parts\"\n"),
    ];
    let toy = engine(&toy.concat(), |_| None).unwrap();
    let rows = ["toy:whole", "toy:a", "toy:c", "toy", "toy:b", "toy:d"];
    assert_eq!(toy.rows_of("parts"), rows);
    assert_eq!(toy.other_presets().collect::<Vec<_>>(), ["whole"]);
    assert!(toy.rows_of("whole").is_empty());
}

#[test]
fn a_suite_without_rows_or_scenarios_is_refused() {
    let refused =
        |other_settings: &str| engine(&format!("{TOY}{other_settings}"), |_| None).unwrap_err().to_string();
    let suite = |name: &str, scenarios: &str| {
        let row = format!("[presets.a]\nsuite = \"{name}\"\n");
        refused(&format!("[suites.{name}]\nabout = \"x\"\nscenarios = [{scenarios}]\n{row}"))
    };
    assert_eq!(suite("parts", ""), "`suites.parts.scenarios`: expected at least one");
    let without_rows = refused("[suites.parts]\nabout = \"x\"\nscenarios = [\"load\"]\n");
    assert_eq!(without_rows, "`suites.parts`: no preset names this suite");
    let unknown = refused("[presets.a]\nsuite = \"parts\"\n");
    assert_eq!(unknown, "`presets.a.suite`: no `suites.parts` in this manifest");
}

#[test]
fn every_manifest_in_the_tree_is_valid_and_named_like_its_folder() {
    let folder = paths::checkout().unwrap().join("engines");
    let engines = read(&folder).unwrap();
    assert_eq!(engines.len(), embedded().unwrap().len());
    for engine in &engines {
        let name = &engine.manifest.name;
        assert!(folder.join(name).join("engine.toml").is_file(), "{name}");
    }
    // `-s` selects a suite by its name, so no two engines may share one.
    let mut suites: Vec<_> = engines.iter().flat_map(|engine| engine.manifest.suites.keys()).collect();
    let all = suites.len();
    suites.sort();
    suites.dedup();
    assert_eq!(suites.len(), all, "{suites:?}");
}

#[test]
fn a_preset_or_a_precision_with_a_value_that_load_does_not_list_is_refused() {
    let load = "[load]\ndtypes = [\"f32\", \"q8_0\"]\noptions = { pin = \"bool\" }\n";
    let parse = |rest: &str| engine(&format!("{TOY}{load}{rest}"), |_| None);
    let presets = "[presets.small]\ndtype = \"q8_0\"\noptions = { pin = true }\n";
    let toy = parse(&format!(
        "{presets}[quantize]\nint8 = {{ preset = \"small\" }}\nfloat32 = {{ dtype = \"f32\" }}\n"
    ));
    let toy = toy.unwrap();
    assert_eq!(toy.quantized("int8").unwrap().unwrap().0, "small");
    let (name, preset) = toy.quantized("float32").unwrap().unwrap();
    assert_eq!((name.as_str(), preset.dtype.as_deref()), (DEFAULT_PRESET, Some("f32")));
    assert!(toy.quantized("nf4").unwrap().is_none());
    for (rest, message) in [
        ("[presets.small]\ndtype = \"q4_0\"\n", "`presets.small`: `load` lists no dtype `q4_0`"),
        ("[presets.small]\noptions = { pim = 1 }\n", "`presets.small`: `load` lists no load option `pim`"),
        (
            "[presets.small]\noptions = { pin = 1 }\n",
            "`presets.small`: `load` lists no value `1` of the load option `pin`",
        ),
        ("[quantize]\nint8 = { preset = \"small\" }\n", "`quantize.int8`: no preset `small`"),
        ("[quantize]\nint8 = { dtype = \"int8\" }\n", "`quantize.int8`: `load` lists no dtype `int8`"),
        ("[quantize]\nint8 = \"small\"\n", "unknown variant `small`, expected `preset` or `dtype`"),
    ] {
        let refused = parse(rest).unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
    }
}
