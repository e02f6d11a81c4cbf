-- NVIDIA A100 (sm_80). Not measured: what pays on the H200 is taken over, as far as it exists.
return {
    about = "NVIDIA A100 (sm_80)",
    sets = gpu { isa = "sm80" },
}
