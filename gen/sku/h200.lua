-- NVIDIA H100 and H200 (sm_90). What is here was measured to pay on two H200s: gen/sets.lua.
return {
    about = "NVIDIA H100 and H200",
    sets = gpu { isa = "sm90" },
}
