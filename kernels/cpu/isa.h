/* isa.h - which of the compiled instruction sets this process uses: "base", "avx2" or "avx512". */
#ifndef HS_CPU_ISA_H
#define HS_CPU_ISA_H

/* The best that the CPU has. The environment variable HALFSTEP_ISA lowers it and never raises it. */
const char *hs_cpu_isa(void);
#endif
