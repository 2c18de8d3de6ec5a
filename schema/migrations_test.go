package schema

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestEveryMigrationOfTheProgramLoads(t *testing.T) {
	t.Parallel()
	migrations, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	if len(migrations) == 0 || len(migrations) != Latest() {
		t.Fatalf("%d migrations, latest is %d", len(migrations), Latest())
	}
	for _, m := range migrations {
		if strings.Contains(m.SQL, "CONCURRENTLY") {
			t.Errorf("%s can't run inside a transaction", m)
		}
	}
}

func TestAMigrationWithAWrongNumberIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"0002_gap.sql", "1_short.sql", "0001.sql", "first_x.sql"} {
		if _, err := load(fstest.MapFS{"migrations/" + name: {Data: []byte("SELECT 1;")}}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestAMigrationWithoutItsLastSemicolonIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := load(fstest.MapFS{"migrations/0001_x.sql": {Data: []byte("SELECT 1\n")}}); err == nil {
		t.Error("it was accepted")
	}
}

func TestLineEndingsOfACheckoutDoNotChangeTheChecksum(t *testing.T) {
	t.Parallel()
	var sums []string
	for _, text := range []string{"SELECT 1;\nSELECT 2;\n", "SELECT 1;\r\nSELECT 2;\r\n"} {
		migrations, err := load(fstest.MapFS{"migrations/0001_x.sql": {Data: []byte(text)}})
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, migrations[0].Checksum)
	}
	if sums[0] != sums[1] {
		t.Fatalf("checksums differ: %v", sums)
	}
}
