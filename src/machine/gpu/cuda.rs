//! The GPU that `cuda:1` names. By default CUDA gives the fastest GPU the index 0, `CUDA_VISIBLE_DEVICES` hides and renumbers
//! GPUs, and the driver's management library (NVML) knows neither rule. So every engine and every probe of GPUs counts GPUs by
//! slot (`CUDA_DEVICE_ORDER`), unless the user chose an order. The values of both variables are kept with the machine. From them
//! a reader of the record finds the same GPU for the same name.

use serde::{Deserialize, Serialize};

use super::facts::Gpu;

const ORDER_VARIABLE: &str = "CUDA_DEVICE_ORDER";
const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// The order of the slots.
const BY_SLOT: &str = "PCI_BUS_ID";

/// CUDA's variables, as engines and probes have them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cuda {
    pub device_order: String,
    /// `CUDA_VISIBLE_DEVICES`. Absent if the variable is not set: all GPUs are visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_devices: Option<String>,
}

/// The variable that makes a process count GPUs by slot. `None` if the user has set it.
pub fn order_for_processes() -> Option<(&'static str, &'static str)> {
    std::env::var_os(ORDER_VARIABLE).is_none().then_some((ORDER_VARIABLE, BY_SLOT))
}

/// The reason why only CUDA knows its numbering of the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownOrder {
    /// One of several GPUs is partitioned (MIG), and `CUDA_VISIBLE_DEVICES` is not set. CUDA may then show a MIG device first or alone.
    Partitioned,
    /// The order depends on which GPU CUDA considers the fastest.
    BySpeed,
}

impl Cuda {
    pub fn of_environment() -> Self {
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            device_order: variable(ORDER_VARIABLE).unwrap_or_else(|| BY_SLOT.into()),
            visible_devices: variable(VISIBLE_VARIABLE),
        }
    }

    /// The reason why `visible` is unknown.
    pub fn unknown_order(&self, gpus: &[Gpu]) -> Option<UnknownOrder> {
        let why = if self.order_depends_on_partitions(gpus) {
            UnknownOrder::Partitioned
        } else {
            UnknownOrder::BySpeed
        };
        self.visible(gpus).is_none().then_some(why)
    }

    fn order_depends_on_partitions(&self, gpus: &[Gpu]) -> bool {
        self.visible_devices.is_none() && gpus.len() > 1 && gpus.iter().any(Gpu::is_partitioned)
    }

    /// NVML's indices of the GPUs that CUDA shows, in CUDA's order. `None` if unknown (`unknown_order` has the reason). A MIG
    /// device counts as its GPU.
    pub fn visible(&self, gpus: &[Gpu]) -> Option<Vec<u32>> {
        match self.visible_devices.as_deref() {
            None if self.order_depends_on_partitions(gpus) => None,
            None => self.in_slot_order(gpus),
            Some(list) if list.starts_with("GPU-") => Some(items_of(list, |word| gpu_named(word, gpus))),
            // CUDA shows only the first of several MIG devices.
            Some(list) if list.starts_with("MIG-") => {
                let first = list.split(',').next().unwrap_or_default();
                Some(gpu_of_mig_device(first.trim(), gpus).into_iter().collect())
            }
            Some(list) => {
                let all = self.in_slot_order(gpus);
                // An empty list shows no GPU, in any order.
                let indices = items_of(list, |word| number(word).filter(|&number| number < gpus.len()));
                indices.into_iter().map(|index| all.as_ref().map(|all| all[index])).collect()
            }
        }
    }

    fn in_slot_order(&self, gpus: &[Gpu]) -> Option<Vec<u32>> {
        if gpus.len() > 1 && self.device_order != BY_SLOT {
            return None;
        }
        let mut all: Vec<&Gpu> = gpus.iter().collect();
        if gpus.iter().all(|gpu| gpu.pci.is_some()) {
            all.sort_by_key(|gpu| gpu.pci.as_ref().map(|pci| pci.to_ascii_lowercase()));
        }
        Some(all.into_iter().map(|gpu| gpu.index).collect())
    }
}

/// The items that a list names, up to the first invalid word. A list with a repeated item is invalid as a whole.
fn items_of<T: PartialEq>(list: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    let mut items = Vec::new();
    for word in list.split(',') {
        match parse(word.trim()) {
            Some(it) if items.contains(&it) => return Vec::new(),
            Some(it) => items.push(it),
            None => break,
        }
    }
    items
}

/// The digits that a word begins with, as C reads a number.
fn number(word: &str) -> Option<usize> {
    let end = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    word[..end].parse().ok()
}

/// The GPU whose identity begins with the word, if it is the only one.
fn gpu_named(word: &str, gpus: &[Gpu]) -> Option<u32> {
    if !word.starts_with("GPU-") {
        return None;
    }
    single(gpus.iter().filter(|gpu| gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(word))))
}

/// The GPU of a MIG device. The name is `MIG-` and the UUID; older drivers write its GPU's identity and two numbers:
/// `MIG-GPU-8932f937/1/0`.
fn gpu_of_mig_device(word: &str, gpus: &[Gpu]) -> Option<u32> {
    let after = word.strip_prefix("MIG-")?;
    if after.starts_with("GPU-") {
        return gpu_named(after.split('/').next().unwrap_or_default(), gpus);
    }
    single(gpus.iter().filter(|gpu| gpu.mig_uuids.iter().any(|uuid| uuid.starts_with(word))))
}

fn single<'a>(mut gpus: impl Iterator<Item = &'a Gpu>) -> Option<u32> {
    let first = gpus.next()?;
    gpus.next().is_none().then_some(first.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, uuid: &str, pci: &str) -> Gpu {
        Gpu { index, uuid: Some(uuid.into()), pci: Some(pci.into()), ..Gpu::default() }
    }

    /// GPUs in an order that is not the order of their slots.
    fn gpus() -> [Gpu; 3] {
        [
            gpu(0, "GPU-aa31", "00000000:C1:00.0"),
            gpu(1, "GPU-ab32", "00000000:1b:00.0"),
            gpu(2, "GPU-bb33", "00000000:43:00.0"),
        ]
    }

    fn visible(order: &str, devices: Option<&str>, gpus: &[Gpu]) -> Option<Vec<u32>> {
        Cuda { device_order: order.into(), visible_devices: devices.map(String::from) }.visible(gpus)
    }

    #[test]
    fn cuda_indices_are_known_only_in_slot_order() {
        assert_eq!(visible(BY_SLOT, None, &gpus()), Some(vec![1, 2, 0]));
        assert_eq!(visible("FASTEST_FIRST", None, &gpus()), None);
        assert_eq!(visible("FASTEST_FIRST", Some("1"), &gpus()), None);
        // A single GPU has no order.
        assert_eq!(visible("FASTEST_FIRST", None, &gpus()[2..]), Some(vec![2]));
        assert_eq!(visible(BY_SLOT, None, &[]), Some(vec![]));
        // Without known slots, the driver's own order is used.
        let without_slots = gpus().map(|gpu| Gpu { pci: None, ..gpu });
        assert_eq!(visible(BY_SLOT, None, &without_slots), Some(vec![0, 1, 2]));
    }

    #[test]
    fn visible_devices_renumber_gpus_up_to_the_first_invalid_number() {
        for (list, expected) in [
            ("2,0", vec![0, 1]),
            (" 1 , 2", vec![2, 0]),
            // CUDA's documentation: devices after an invalid one are hidden.
            ("0,2,-1,1", vec![1, 0]),
            ("0,3,1", vec![1]),
            ("1gpu,2nd", vec![2, 0]),
            ("0,", vec![1]),
            ("", vec![]),
            ("-1", vec![]),
            ("none", vec![]),
            ("99999999999999999999", vec![]),
            // A repeated device hides all.
            ("0,1,0", vec![]),
            ("0,GPU-bb33", vec![1]),
        ] {
            assert_eq!(visible(BY_SLOT, Some(list), &gpus()), Some(expected), "`{list}`");
        }
        assert_eq!(visible("FASTEST_FIRST", Some(""), &gpus()), Some(vec![]));
    }

    #[test]
    fn a_unique_prefix_of_an_identity_names_a_gpu_in_any_order() {
        for (list, expected) in [
            ("GPU-bb33,GPU-aa31", vec![2, 0]),
            ("GPU-b,GPU-ab", vec![2, 1]),
            ("GPU-a", vec![]),
            ("GPU-bb33,GPU-x,GPU-ab32", vec![2]),
            ("GPU-bb33,0", vec![2]),
            ("GPU-b,GPU-bb33", vec![]),
        ] {
            for order in [BY_SLOT, "FASTEST_FIRST"] {
                assert_eq!(visible(order, Some(list), &gpus()), Some(expected.clone()), "`{list}`");
            }
        }
    }

    #[test]
    fn a_mig_device_stands_for_its_gpu_and_only_the_first_is_visible() {
        let mut partitioned = gpus();
        partitioned[1].mig = Some(true);
        partitioned[1].mig_uuids = vec!["MIG-0a".into(), "MIG-1b".into()];
        assert_eq!(visible(BY_SLOT, Some("MIG-1b,MIG-0a"), &partitioned), Some(vec![1]));
        assert_eq!(visible(BY_SLOT, Some("MIG-GPU-ab32/1/0"), &partitioned), Some(vec![1]));
        assert_eq!(visible(BY_SLOT, Some("MIG-7"), &partitioned), Some(vec![]));
        assert_eq!(visible(BY_SLOT, None, &partitioned), None);
        assert_eq!(visible(BY_SLOT, None, &partitioned[1..2]), Some(vec![1]));
    }

    #[test]
    fn a_device_order_of_the_user_is_not_replaced() {
        let chosen = std::env::var_os(ORDER_VARIABLE);
        assert_eq!(order_for_processes().is_none(), chosen.is_some());
        let here = Cuda::of_environment();
        assert_eq!(here.device_order, chosen.map_or(BY_SLOT.into(), |it| it.to_string_lossy().into_owned()));
    }
}
