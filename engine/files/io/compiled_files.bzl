"""compiled_files: files as an array of a C++ source, for programs that read them without a file system."""

def compiled_files(name, srcs, array, header, extension = ""):
    """Writes <name>.cc, which defines an absl::Span<const CompiledFile> of the files (engine/files/io/file.h).

    Args:
      name: the target, and the source that it writes.
      srcs: the files.
      array: the name of the span in namespace shale.
      header: the header that declares the span and says what it is.
      extension: what is left out at the end of the files' names.
    """

    # The last entry is there because an array needs one.
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [name + ".cc"],
        cmd = """{
            echo '#include "%s"'
            echo '#include <iterator>'
            echo 'namespace shale { namespace { constexpr CompiledFile %sFiles[] = {'
            for file in $(SRCS); do
                echo "{\\"$$(basename $$file %s)\\", R\\"file("
                cat $$file
                echo ')file"},'
            done
            echo '{}}; }'
            echo 'const absl::Span<const CompiledFile> %s(%sFiles, std::size(%sFiles) - 1); }'
        } > $@""" % (header, array, extension, array, array, array),
    )
