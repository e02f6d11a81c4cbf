-- NVIDIA RTX PRO 6000 Blackwell, RTX 5090 and others of sm_120, on PCIe. Not measured.
return {
    about = "NVIDIA RTX PRO 6000 Blackwell (sm_120)",
    sets = gpu { isa = "sm120", pcie = true },
}
