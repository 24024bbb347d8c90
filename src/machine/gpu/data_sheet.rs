//! The peaks that NVIDIA's data sheets state for GPUs. To add a GPU, add an entry.

/// The peak rates of a GPU, without sparsity: operations and bytes of its memory in a second. `None`: the data sheet has no such
/// unit. Products of bf16, f16 and tf32 are summed in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataSheet {
    /// The name that the driver reports, without `NVIDIA`.
    pub name: &'static str,
    pub bytes: f64,
    pub bf16: Option<f64>,
    pub f16: f64,
    pub tf32: Option<f64>,
    pub f32: f64,
    pub int8: f64,
}

const fn data_sheet(
    name: &'static str,
    gigabytes: f64,
    [bf16, tf32, f32, int8]: [f64; 4], // in 10¹² operations a second
) -> DataSheet {
    let tera = 1e12;
    let (bf16, tf32, f32, int8) = (bf16 * tera, tf32 * tera, f32 * tera, int8 * tera);
    DataSheet { name, bytes: gigabytes * 1e9, bf16: Some(bf16), f16: bf16, tf32: Some(tf32), f32, int8 }
}

/// The sources are the data sheets of the products, and for GeForce the white papers of GA102 and AD102. Where a data sheet has
/// only rates with sparsity, these are halved.
const DATA_SHEETS: [DataSheet; 15] = [
    data_sheet("H200", 4800.0, [989.5, 494.5, 67.0, 1979.0]),
    data_sheet("H200 NVL", 4800.0, [835.5, 417.5, 60.0, 1670.5]),
    data_sheet("H100 80GB HBM3", 3350.0, [989.5, 494.5, 67.0, 1979.0]),
    data_sheet("H100 NVL", 3900.0, [835.5, 417.5, 60.0, 1670.5]),
    data_sheet("H100 PCIe", 2000.0, [756.5, 378.0, 51.0, 1513.0]),
    data_sheet("A100-SXM4-80GB", 2039.0, [312.0, 156.0, 19.5, 624.0]),
    data_sheet("A100 80GB PCIe", 1935.0, [312.0, 156.0, 19.5, 624.0]),
    data_sheet("A100-SXM4-40GB", 1555.0, [312.0, 156.0, 19.5, 624.0]),
    data_sheet("A100-PCIE-40GB", 1555.0, [312.0, 156.0, 19.5, 624.0]),
    data_sheet("L40S", 864.0, [362.0, 183.0, 91.6, 733.0]),
    data_sheet("L4", 300.0, [121.0, 60.0, 30.3, 242.5]),
    data_sheet("A10", 600.0, [125.0, 62.5, 31.2, 250.0]),
    data_sheet("GeForce RTX 4090", 1008.0, [165.2, 82.6, 82.6, 660.6]),
    data_sheet("GeForce RTX 3090", 936.0, [71.0, 35.6, 35.6, 284.0]),
    // This generation has neither bf16 nor tf32.
    DataSheet { bf16: None, tf32: None, ..data_sheet("Tesla T4", 320.0, [65.0, 0.0, 8.1, 130.0]) },
];

impl DataSheet {
    /// The data sheet of the GPU with this name; `None` for an unknown GPU, and for a MIG device, whose name is longer.
    pub fn of(name: &str) -> Option<&'static Self> {
        let name = name.strip_prefix("NVIDIA ").unwrap_or(name);
        DATA_SHEETS.iter().find(|it| it.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_its_data_sheet_under_its_whole_name_only() {
        let tera = |name: &str| DataSheet::of(name).map(|it| it.f16 / 1e12);
        assert_eq!((tera("NVIDIA H100 80GB HBM3"), tera("NVIDIA H100 PCIe")), (Some(989.5), Some(756.5)));
        // Earlier drivers report some names without `NVIDIA`.
        assert_eq!((tera("A100-SXM4-40GB"), tera("Tesla T4")), (Some(312.0), Some(65.0)));
        for other in ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40", "NVIDIA H100", "Pretence 9000", ""] {
            assert_eq!(tera(other), None, "{other}");
        }
    }

    #[test]
    fn narrower_units_of_a_gpu_are_at_least_as_fast_as_wider_ones() {
        for it in DATA_SHEETS {
            let (bf16, tf32) = (it.bf16.unwrap_or(it.f16), it.tf32.unwrap_or(it.f32));
            assert!(it.f32 <= tf32 && tf32 < it.f16 && bf16 == it.f16 && it.f16 < it.int8, "{it:?}");
            assert!((2e11..1e13).contains(&it.bytes) && it.f32 > 5e12, "{it:?}");
        }
    }
}
