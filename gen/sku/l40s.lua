-- NVIDIA L40S, L4 and RTX 40 (sm_89), on PCIe. Not measured.
return {
    about = "NVIDIA L40S, L4 and RTX 40 (sm_89)",
    sets = gpu { isa = "sm89", pcie = true },
}
