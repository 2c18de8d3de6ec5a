package daemon

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestOnlyPagesThatAreInTheProgramsFileAreReleased(t *testing.T) {
	t.Parallel()
	got, err := unchangedMappings(strings.NewReader(`00400000-02079000 r-xp 00000000 fe:00 1234                     /usr/bin/outbox
Rss:               14000 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
02079000-03000000 r--p 01c79000 fe:00 1234                     /usr/bin/outbox
Private_Dirty:         8 kB
Anonymous:             8 kB
03000000-03100000 rw-p 02c00000 fe:00 1234                     /usr/bin/outbox
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 fe:00 99               /usr/lib/libc.so
Anonymous:             0 kB
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                [vdso]
Anonymous:             0 kB
`), "/usr/bin/outbox")
	if err != nil {
		t.Fatal(err)
	}
	if want := []addresses{{0x400000, 0x2079000}}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestAProgramRunsOnAfterItsPagesWereReleased(t *testing.T) {
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer smaps.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if unchanged, err := unchangedMappings(smaps, program); err != nil || len(unchanged) == 0 {
		t.Fatalf("%d mappings to release, %v", len(unchanged), err)
	}
	if err := releaseProgram(); err != nil {
		t.Fatal(err)
	}
}
