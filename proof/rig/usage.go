package rig

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// What processes use is read from Linux's /proc. Elsewhere it is not measured, and results say 0.

// DatabaseCPU is what the postmaster that owns a backend and all its children have used so far, in
// seconds; 0 where they can't be seen, as on another machine.
func DatabaseCPU(backend uint32) float64 {
	if !isPostgres(int(backend)) {
		return 0
	}
	parent, _ := processStat(int(backend))
	if parent <= 1 || !isPostgres(parent) {
		return 0
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	total := 0.0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ppid, cpu := processStat(pid); pid == parent || ppid == parent {
			total += cpu
		}
	}
	return total
}

// isPostgres guards against a backend's id that is another process's here: it may come from another
// machine or container.
func isPostgres(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.HasPrefix(string(name), "postgres")
}

// processStat reads a process's parent and CPU seconds; those of its ended children are included.
func processStat(pid int) (parent int, seconds float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // a name may have spaces
	if len(fields) < 15 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(fields[1])
	const ticks = 100 // a second: USER_HZ, fixed in Linux's interface
	for _, f := range fields[11:15] {
		n, _ := strconv.ParseFloat(f, 64)
		seconds += n / ticks
	}
	return parent, seconds
}

// CPU is what a process has used so far, in seconds.
func CPU(pid int) float64 {
	_, seconds := processStat(pid)
	return seconds
}

// PeakRSS is the most memory that a process has had so far, in MiB.
func PeakRSS(pid int) float64 { return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmHWM:") / 1024 }

// RSS is the memory that a process has, in MiB.
func RSS(pid int) float64 { return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:") / 1024 }

// kilobytes reads a line like "VmHWM:  1234 kB".
func kilobytes(path, name string) float64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				n, _ := strconv.ParseFloat(fields[0], 64)
				return n
			}
		}
	}
	return 0
}

// Machine is where a benchmark ran.
type Machine struct {
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	CPUs     int    `json:"cpus"`
	CPU      string `json:"cpu,omitempty"`
	MemoryMB int    `json:"memory_mb,omitempty"`
}

func ThisMachine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		MemoryMB: int(kilobytes("/proc/meminfo", "MemTotal:") / 1024)}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	return m
}

// String returns the machine in words.
func (m Machine) String() string {
	s := fmt.Sprintf("%d CPUs", m.CPUs)
	if m.CPU != "" {
		s += " (" + m.CPU + ")"
	}
	if m.MemoryMB > 0 {
		s += fmt.Sprintf(", %.0f GiB", float64(m.MemoryMB)/1024)
	}
	return s + ", " + m.OS + "/" + m.Arch
}
