-- NVIDIA B200 and GB200 (sm_100). Not measured: what pays on the H200 is taken over.
return {
    about = "NVIDIA B200 and GB200 (sm_100)",
    sets = gpu { isa = "sm100" },
}
