// Command oracle returns the verdicts of kube-scheduler's own filter plug-ins on small clusters.
//
// It reads one case per line from standard input and writes one answer per line to standard output; see case.go for both forms.
// A line that cannot be read is answered with {"error": "..."}; the program continues with the next one.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/klog/v2"
)

func main() {
	klog.SetLogger(klog.LoggerWithName(klog.Background(), "oracle"))
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	judge, err := newJudge(ctx)
	if err != nil {
		return err
	}
	reader := bufio.NewReaderSize(in, 1<<20)
	writer := bufio.NewWriterSize(out, 1<<16)
	encoder := json.NewEncoder(writer)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 1 {
			if err := encoder.Encode(answer(ctx, judge, line)); err != nil {
				return err
			}
			if reader.Buffered() == 0 {
				if err := writer.Flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return writer.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// answer judges one line; any error, including a panic of a plug-in, becomes its answer.
func answer(ctx context.Context, judge *judge, line []byte) (result Answer) {
	defer func() {
		if problem := recover(); problem != nil {
			result = Answer{Error: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	var c Case
	if err := json.Unmarshal(line, &c); err != nil {
		return Answer{Error: err.Error()}
	}
	result, err := judge.answer(ctx, &c)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	return result
}
