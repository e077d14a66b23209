# Writes OUT, a source that holds the commit of the folder SOURCE, unless it says so already. Run by the target weft_commit.
execute_process(COMMAND git rev-parse HEAD WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE commit RESULT_VARIABLE failed
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(failed)
  set(commit "unknown")
else()
  execute_process(COMMAND git diff --quiet HEAD WORKING_DIRECTORY "${SOURCE}" RESULT_VARIABLE changed ERROR_QUIET)
  if(changed)
    string(APPEND commit ", changed")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#include \"app/commit.h\"\n\nnamespace weft {\n\nconst char* const kBuildCommit = \"${commit}\";\n\n}  // namespace weft\n")
