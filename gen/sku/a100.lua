-- NVIDIA A100 (sm_80), SXM and PCIe. Not measured.
return {
    about = "NVIDIA A100 (sm_80)",
    sets = gpu { isa = "sm80", pcie = true },
}
