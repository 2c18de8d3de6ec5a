package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
)

// listing is where a shell finds values to propose: a verb that lists them, and the fields of its result that lead
// there.
type listing struct{ verb, fields string }

// listings are those of parameters, by name. Values of enumerations need none.
func listings() map[string][]listing {
	return map[string][]listing{
		"destination": {{"destinations ls", "name"}},
		"topic":       {{"messages find", "messages topic"}, {"dead group", "groups topic"}},
		"key":         {{"holds", "lane"}},
		"group":       {{"dead group", "groups fingerprint"}},
		"ids":         {{"dead ls", "message_id"}},
		"id":          {{"jobs ls", "id"}},
		"by":          {{"audit", "actor"}},
		"verb":        {{"audit", "verb"}},
	}
}

// plain matches words that no shell expands. Topics and keys are what writers of messages make them, and what is
// proposed stands in an operator's command line after one key.
var plain = regexp.MustCompile(`^[A-Za-z0-9_.:/@%+,-]+$`)

// completes proposes the values that there are in the database, or that the relay's API tells of.
func (a *app) completes(p verbs.Param) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		// Completion must not hang on a database that is down.
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		found := slices.Clone(p.Enum)
		if from := listings()[p.Of]; len(from) > 0 {
			found = append(found, a.listed(ctx, from)...)
		}
		slices.Sort(found)
		return slices.DeleteFunc(slices.Compact(found), func(s string) bool {
			return !strings.HasPrefix(s, typed) || !plain.MatchString(s)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// listed returns what verbs list. What can't be looked at is left out: a prompt is no place for errors.
func (a *app) listed(ctx context.Context, from []listing) (found []string) {
	runner, err := a.Runner(ctx)
	if err != nil {
		return nil
	}
	defer runner.Close()
	for _, l := range from {
		v, err := verbs.ByName(l.verb)
		if err != nil {
			continue
		}
		if result, err := runner.Run(ctx, v, "", v.New()); err == nil {
			found = append(found, valuesIn(result, strings.Fields(l.fields))...)
		}
	}
	return found
}

// valuesIn returns what the fields of a result lead to, as it is in JSON.
func valuesIn(result any, fields []string) (found []string) {
	text, err := json.Marshal(result)
	if err != nil {
		return nil
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil
	}
	var walk func(value any, fields []string)
	walk = func(value any, fields []string) {
		switch value := value.(type) {
		case []any:
			for _, one := range value {
				walk(one, fields)
			}
		case map[string]any:
			if len(fields) > 0 {
				walk(value[fields[0]], fields[1:])
			}
		case string, json.Number:
			if len(fields) == 0 {
				found = append(found, fmt.Sprint(value))
			}
		}
	}
	walk(value, fields)
	return found
}

// completesArguments proposes values of the parameters that stand behind the command.
func (a *app) completesArguments(v verbs.Verb) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		n := len(args)
		for _, p := range v.Params {
			if p.Arg == "" {
				continue
			}
			if n == 0 || p.Repeats() {
				return a.completes(p)(cmd, args, typed)
			}
			n--
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
