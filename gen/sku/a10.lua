-- NVIDIA A10, A40 and RTX 30 (sm_86), on PCIe. Not measured.
return {
    about = "NVIDIA A10, A40 and RTX 30 (sm_86)",
    sets = gpu { isa = "sm86", pcie = true },
}
