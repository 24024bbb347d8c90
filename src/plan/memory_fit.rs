//! Whether a configuration fits into the memory of its device: its weights and the keys and values of its longest request.

use std::collections::BTreeSet;

use super::dtype::{bits, width};
use super::{Configuration, Model, Plan, Role, VERIFIER_DTYPE, engine_name, name_in_dtype};
use crate::engines::manifest::{QUANTIZE_OPTION, options_beside_precision};
use crate::machine::Machine;
use crate::shell::{Unavailable, megabytes};

/// The share of the memory that weights, keys and values may use. The program, its buffers and the system need the rest.
const MAX_MEMORY_SHARE: f64 = 0.9;
/// The bytes of a number in a cache of keys and values: 16 bits are usual.
const CACHE_BYTES: f64 = 2.0;

impl Plan {
    /// Marks a configuration as unavailable if its weights, keys and values do not fit into the memory. The reason has the
    /// needed size and that of the memory. Nothing is started for it. A configuration of unknown size is not marked.
    pub fn mark_too_large(mut self, machine: &Machine) -> Self {
        let reasons: Vec<Option<Unavailable>> =
            (0..self.configurations.len()).map(|index| self.why_too_large(index, machine)).collect();
        for (configuration, reason) in self.configurations.iter_mut().zip(reasons) {
            if let Some(reason) = reason.filter(|_| configuration.unavailable.is_none()) {
                configuration.unavailable = Some(reason);
                configuration.command.clear();
            }
        }
        self
    }

    /// Replaces the reference if one of its rows is unavailable. The new reference differs from it only in the precision: the
    /// widest precision that is available with every model, and of equal widths the first. If there is none, the reference
    /// stays. A new reference gets a twin.
    pub fn with_available_reference(mut self) -> Self {
        let rows = || self.row_indices().map(|index| &self.configurations[index]);
        let is_available =
            |name: &str| rows().filter(|row| row.is_named(name)).all(|row| row.unavailable.is_none());
        let Some(reference) = rows().find(|row| row.is_named(&self.reference)) else { return self };
        if is_available(&self.reference) {
            return self;
        }
        let name = |row: &Configuration| {
            let engine = engine_name(&row.engine, row.preset.as_deref());
            row.dtype.as_ref().map_or_else(|| engine.clone(), |dtype| name_in_dtype(&engine, dtype))
        };
        let options = |row: &Configuration| options_beside_precision(&row.options);
        let is_comparable =
            |row: &&Configuration| row.engine == reference.engine && options(row) == options(reference);
        let others: Vec<&Configuration> =
            rows().filter(is_comparable).filter(|row| is_available(&name(row))).collect();
        let Some(widest) = others.into_iter().rev().max_by_key(|row| width(dtype_of(row), None)).map(name)
        else {
            return self;
        };
        self.reference = widest;
        let references: BTreeSet<usize> =
            self.row_indices().filter_map(|row| self.reference_of(row)).collect();
        references.into_iter().for_each(|row| self.add_twin(row));
        self
    }

    fn why_too_large(&self, index: usize, machine: &Machine) -> Option<Unavailable> {
        let configuration = &self.configurations[index];
        let dtype = dtype_of(configuration)?;
        let needed = needed_bytes(&configuration.model, dtype, self.largest_request(configuration))?;
        let memory = memory_of(configuration, machine)?;
        if needed <= MAX_MEMORY_SHARE * memory {
            return None;
        }
        let size = |bytes: f64| megabytes((bytes / 1e6).round() as u64);
        let reason = format!(
            "it needs about {} in {dtype}, and {:.0} % of the {} of memory may be used",
            size(needed),
            100.0 * MAX_MEMORY_SHARE,
            size(memory)
        );
        Some(Unavailable { reason, hint: None })
    }

    /// The tokens of the largest request to the model, with all sequences of a batch. Cases of every engine count, because the
    /// verifier checks them all.
    fn largest_request(&self, configuration: &Configuration) -> u64 {
        let on_model = |index: usize| self.configurations[index].model == configuration.model;
        let requests = self.cases.iter().filter(|case| on_model(case.configuration)).map(|case| {
            // A token has at least one byte, so there are at most as many tokens as bytes.
            let prompt = case.workload.longest_prompt(|texts| texts.iter().map(String::len).max());
            // The verifier gets one sequence at a time.
            let is_verifier = configuration.role == Some(Role::Verifier);
            let sequences = if is_verifier { 1 } else { u64::from(case.workload.shape.most_at_once()) };
            sequences * (prompt.unwrap_or_default() as u64 + u64::from(case.workload.max_new_tokens))
        });
        requests.max().unwrap_or(0)
    }
}

/// The dtype of the weights in memory: f32 for the verifier, else as requested, else as in the model's files. `None` if an
/// option quantizes the weights, because their dtype is then unknown.
fn dtype_of(configuration: &Configuration) -> Option<&str> {
    match configuration.role {
        _ if configuration.options.contains_key(QUANTIZE_OPTION) => None,
        Some(Role::Verifier) => Some(VERIFIER_DTYPE),
        // The null engine loads no weights.
        Some(Role::NullEngine) => None,
        _ => configuration.dtype.as_deref().or(configuration.model.dtype.as_deref()),
    }
}

fn needed_bytes(model: &Model, dtype: &str, positions: u64) -> Option<f64> {
    let sizes = model.sizes.as_ref()?;
    let weights = sizes.parameters as f64 * bits(dtype)? / 8.0;
    Some(weights + positions as f64 * sizes.kv_numbers_per_position as f64 * CACHE_BYTES)
}

/// The memory of the GPU, or of the machine within the limit of its container.
fn memory_of(configuration: &Configuration, machine: &Machine) -> Option<f64> {
    if let Some(index) = configuration.device.cuda_index() {
        // CUDA and NVML count GPUs differently.
        let index = machine.gpu_of(index)?;
        let gpu = machine.gpus.iter().find(|gpu| gpu.index == index)?;
        return gpu.memory_bytes.map(|bytes| bytes as f64);
    }
    let limits = [machine.memory_bytes, machine.memory_limit_bytes];
    limits.into_iter().flatten().min().map(|bytes| bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::gpu::{Cuda, Gpu};
    use crate::plan::{Case, Prompt, Sizes, Workload};

    /// A model of this many parameters in bf16, with an engine in that dtype, one in f32 and one in 4 bits.
    fn plan(parameters: u64) -> Plan {
        let sizes = Some(Sizes { parameters, kv_numbers_per_position: 1000, ..Sizes::default() });
        let model = Model { dtype: Some("bf16".into()), sizes, ..Model::default() };
        let configuration = |label: &str, dtype: Option<&str>| Configuration {
            label: label.into(),
            command: vec![label.into()],
            model: model.clone(),
            device: "cpu".into(),
            dtype: dtype.map(String::from),
            ..Configuration::default()
        };
        let rows = [("own", None), ("exact", Some("f32")), ("small", Some("q4_0"))];
        let configurations = rows.map(|(label, dtype)| configuration(label, dtype)).to_vec();
        Plan { configurations, ..Plan::default() }
    }

    fn fitting(plan: Plan, machine: &Machine) -> Vec<String> {
        let plan = plan.mark_too_large(machine);
        let rows = plan.configurations.iter().filter(|it| it.role.is_none() && it.unavailable.is_none());
        rows.map(|it| it.label.clone()).collect()
    }

    #[test]
    fn a_precision_that_does_not_fit_is_unavailable_and_the_reason_has_both_sizes() {
        let machine =
            |gigabytes: u64| Machine { memory_bytes: Some(gigabytes * 1_000_000_000), ..Machine::default() };
        assert_eq!(fitting(plan(1_000_000_000), &machine(8)), ["own", "exact", "small"]);
        assert_eq!(fitting(plan(1_000_000_000), &machine(4)), ["own", "small"]);
        assert_eq!(fitting(plan(1_000_000_000), &machine(1)), ["small"]);
        let marked = plan(1_000_000_000).mark_too_large(&machine(1));
        let reason = &marked.configurations[1].unavailable.as_ref().unwrap().reason;
        assert_eq!(reason, "it needs about 4.0 GB in f32, and 90 % of the 1.0 GB of memory may be used");
        assert!(marked.configurations[1].command.is_empty());
        let limited = Machine { memory_limit_bytes: Some(1_000_000_000), ..machine(64) };
        assert_eq!(fitting(plan(1_000_000_000), &limited), ["small"], "the container's limit counts");
    }

    #[test]
    fn the_widest_precision_that_fits_replaces_a_reference_that_does_not() {
        let of_one_engine = |parameters: u64, gigabytes: u64| {
            let mut plan = plan(parameters);
            for (row, dtype) in plan.configurations.iter_mut().zip(["bf16", "f32", "q4_0"]) {
                (row.engine, row.dtype) = ("toy".into(), Some(dtype.into()));
            }
            plan.reference = "toy f32".into();
            plan.cases = (0..3)
                .map(|configuration| Case { configuration, workload: Workload::specimen(Prompt::Tokens(8)) })
                .collect();
            let memory_bytes = Some(gigabytes * 1_000_000_000);
            let plan = plan.mark_too_large(&Machine { memory_bytes, ..Machine::default() });
            let plan = plan.with_available_reference();
            let reference = plan.reference_of(0).unwrap();
            let is_new = plan.reference != "toy f32";
            assert_eq!(plan.twin_of(reference).is_some(), is_new, "a new reference has a twin");
            plan.reference
        };
        let references = [8, 4, 1].map(|gigabytes| of_one_engine(1_000_000_000, gigabytes));
        assert_eq!(references, ["toy f32", "toy bf16", "toy q4_0"]);
        assert_eq!(of_one_engine(8_000_000_000, 1), "toy f32", "nothing fits");
        // A row that differs in more than the precision is no reference.
        let mut plan = plan(1_000_000_000);
        for (row, dtype) in plan.configurations.iter_mut().zip(["bf16", "f32", "q4_0"]) {
            (row.engine, row.dtype) = ("toy".into(), Some(dtype.into()));
        }
        plan.configurations[0].options.insert("pin".into(), false.into());
        plan.reference = "toy f32".into();
        let machine = Machine { memory_bytes: Some(3_000_000_000), ..Machine::default() };
        assert_eq!(plan.mark_too_large(&machine).with_available_reference().reference, "toy q4_0");
    }

    #[test]
    fn the_memory_of_a_device_is_that_of_the_gpu_with_its_cuda_index() {
        let gpu = |index, gigabytes: u64| Gpu {
            index,
            memory_bytes: Some(gigabytes * 1_000_000_000),
            ..Gpu::default()
        };
        let visible = |devices: &str| Machine {
            gpus: vec![gpu(0, 1), gpu(1, 80)],
            cuda: Some(Cuda { device_order: "PCI_BUS_ID".into(), visible_devices: Some(devices.into()) }),
            ..Machine::default()
        };
        let mut on_gpu = plan(1_000_000_000);
        on_gpu.configurations.iter_mut().for_each(|it| it.device = "cuda:0".into());
        assert_eq!(fitting(on_gpu.clone(), &visible("0,1")), ["small"]);
        assert_eq!(fitting(on_gpu, &visible("1")), ["own", "exact", "small"]);
    }

    #[test]
    fn a_precision_stays_available_if_the_size_of_the_model_or_of_the_memory_is_unknown() {
        let mut unknown = plan(1);
        unknown.configurations.iter_mut().for_each(|it| it.model.sizes = None);
        let small = Machine { memory_bytes: Some(1), ..Machine::default() };
        assert_eq!(fitting(unknown, &small).len(), 3);
        assert_eq!(fitting(plan(1_000_000_000), &Machine::default()).len(), 3);
    }
}
