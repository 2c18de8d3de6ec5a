// Command again tells how to run again what has failed: it reads what go test said, in the file that gotestsum names.
// Its arguments are those of go test.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	file, err := os.Open(os.Getenv("GOTESTSUM_JSONFILE"))
	if err == nil {
		err = tell(os.Stdout, file, os.Environ(), os.Args[1:])
		file.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "again:", err)
		os.Exit(1)
	}
}

// tell writes a command for each package of which tests have failed, or that failed without a test to blame.
func tell(w io.Writer, events io.Reader, environment, flags []string) error {
	failed := make(map[string][]string)
	for lines := bufio.NewReader(events); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		var event struct{ Action, Package, Test string }
		if json.Unmarshal(line, &event) != nil || event.Action != "fail" {
			continue // gotestsum writes down what isn't JSON, too
		}
		tests := failed[event.Package]
		if event.Test != "" && !strings.Contains(event.Test, "/") {
			tests = append(tests, event.Test)
		}
		failed[event.Package] = tests
	}
	if len(failed) == 0 {
		return nil
	}
	var command []string
	for _, variable := range environment {
		if strings.HasPrefix(variable, "OUTBOX_TEST_") {
			command = append(command, variable)
		}
	}
	slices.Sort(command)
	command = append(append(command, "go", "test", "-v", "-count", "1"), flags...)
	fmt.Fprintln(w, "\nAgain, with its output:")
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		which := ""
		if tests := failed[name]; len(tests) > 0 {
			slices.Sort(tests)
			which = "-run '^(" + strings.Join(slices.Compact(tests), "|") + ")$' "
		}
		fmt.Fprintln(w, " ", strings.Join(command, " "), which+name)
	}
	return nil
}
