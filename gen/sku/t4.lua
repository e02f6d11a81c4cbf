-- NVIDIA T4 (sm_75), on PCIe. Not measured. bf16 is converted by hand there.
return {
    about = "NVIDIA T4 (sm_75)",
    sets = gpu { isa = "sm75", pcie = true, known_ranks = false },
}
